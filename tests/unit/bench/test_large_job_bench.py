"""The benchmark of one large job: its table, and its goals."""

from __future__ import annotations

import pytest

import large_job
from bench_harness.machine import machine
from bench_operator.large import LargeReport, LargeRun, Phase
from bench_operator.results import Cost


def phase(status: int = 2048, p99: float | None = None) -> Phase:
    cost = Cost(seconds=4.0, cpu=1.5, rss_mb=120, requests={"create pods": 200}, all_requests=900, by_process={})
    return Phase(name="create", cost=cost, status_bytes=status, etcd_bytes=4096, replaced_p99=p99, created=200)


def report(*phases: Phase) -> LargeReport:
    run = LargeRun(workers=200, lost=100, phases=phases)
    return LargeReport(machine=machine(), kubernetes="v1", kwok="v1", system="elastrain-slim", runs=(run,))


def test_each_phase_is_a_row() -> None:
    (phases, _) = large_job.tables(report(phase(), phase(p99=1.234)))
    assert phases.rows[0] == ("create", "200", "4.0", "1.5", "120", "200", "900", "200", "4", "2.0", "")
    assert phases.rows[1][-1] == "1.23"
    assert {len(row) for row in phases.rows} == {len(phases.header)}


@pytest.mark.parametrize(
    ("status", "p99", "met"),
    [(2048, 2.9, ["yes", "yes"]), (256 * 1024, 2.9, ["no", "yes"]), (2048, 3.1, ["yes", "no"])],
)
def test_the_worst_phase_decides_each_goal(status: int, p99: float, met: list[str]) -> None:
    assert [row[-1] for row in large_job.goals(report(phase(), phase(status, p99)))] == met
