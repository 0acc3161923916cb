"""The model of `elastrain plan` in the terms of a run of ``bench/ettr.py``."""

from __future__ import annotations

from dataclasses import fields

import pytest

from bench_ettr.predict import GROUPS, beside, cluster_of
from bench_ettr.report import CAUSES
from bench_ettr.results import Fired, Report, Rescaled, RunResult
from bench_harness.machine import machine
from elastrain_plan.model import Split, split

STATE = 1e9


def lost(detect: float, to_size: int = 3) -> Rescaled:
    phases = {"detect": detect, "decide": 0.02, "connect": 0.04, "transfer": 0.01, "first_step": 0.3}
    return Rescaled(reason="Lost", from_size=4, to_size=to_size, pause=1.0, phases=phases)


def a_run(*rescales: Rescaled, losses: int = 3, wall: float = 600.0, missing: float = 0.0, **lost: float) -> RunResult:
    fired = tuple(Fired(at=10.0 * i, cause="faulty GPU", kind="node", node=i) for i in range(losses))
    return RunResult(
        system="elastrain", about="", start=1.0, load=0.0, wall=wall, ettr=1 - sum(lost.values()) / wall, lost=lost,
        step=0.2, longest=1.0, rolled_back=0, ended=0, hangs=0, away=0.0, missing=missing, of_paid=1.0, samples=None,
        fired=fired, rescales=rescales,
    )  # fmt: skip


def a_report(run: RunResult) -> Report:
    return Report(
        machine=machine(), ranks=4, minutes=10, rate=18, seed=1, repair=10, pace=0.01, checkpoint_every=20, runs=(run,)
    )


def test_each_cause_of_a_run_and_of_the_model_is_held_against_the_other_once() -> None:
    assert sorted(cause for causes, _ in GROUPS.values() for cause in causes) == sorted(CAUSES)
    of_model = [part for _, parts in GROUPS.values() for part in parts]
    assert sorted([*of_model, "training", "spare"]) == sorted(field.name for field in fields(Split))


def test_a_loss_of_a_frozen_rank_is_one_that_only_the_lease_ends() -> None:
    run = a_run(lost(0.2), lost(0.2), lost(0.2), lost(4.1))
    constants = cluster_of(a_report(run), run, STATE)[0].constants
    assert constants.silent == pytest.approx(1 / 4)
    assert constants.detect == pytest.approx(0.1), "half a step of it is the step that is lost"
    assert constants.lease == pytest.approx(4.0)
    assert constants.first_step == pytest.approx(0.3 - 0.2 * 4 / 3)


def test_the_model_has_the_run_s_rate_and_missing_ranks() -> None:
    run = a_run(lost(0.2), lost(0.2), lost(0.2), losses=3, missing=24.0)
    cluster, settings = cluster_of(a_report(run), run, STATE)
    assert cluster.rate == pytest.approx(3 / 600)
    assert split(cluster, settings).waiting == pytest.approx(24 / 600 / 4, rel=0.05)


def test_measured_and_modelled_parts_each_add_up_to_all_time() -> None:
    run = a_run(lost(0.2), node=1.0, capacity=6.0, scatter=2.0, join=0.5, redone=0.25)
    rows = beside(run, split(*cluster_of(a_report(run), run, STATE)))
    assert sum(row.measured for row in rows) == pytest.approx(100)
    assert sum(row.model for row in rows) == pytest.approx(100)


def test_a_run_without_a_loss_is_nothing_to_hold_the_model_against() -> None:
    run = a_run(losses=0)
    with pytest.raises(ValueError, match="no loss was measured"):
        cluster_of(a_report(run), run, STATE)
