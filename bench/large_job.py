#!/usr/bin/env python3
"""The cost of one large job. ``--help`` explains its use."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_harness.tables import Table
from bench_operator.cluster import BUILD, GPUS, missing, version
from bench_operator.large import LargeReport, LargeRun, Phase, Size, measure
from bench_operator.net import Refused

HELP = f"""Measure what one job of hundreds or thousands of workers costs the operator, the API server and etcd.

Each run starts a control plane of its own on loopback (etcd, API server, controllers, scheduler; kwok plays nodes and
pods) and creates one job. The benchmark plays its members: a generation follows each loss, each newcomer and each
request to leave, by the records that agents would write. Then workers are lost at once, the API server stops and
answers in turns, the template changes (a twentieth of the workers at a time), and the job is deleted. 200 workers take
about three minutes, 2,000 about twenty on two cores. A machine that does other work changes seconds, not counts.

\b
Examples:
  bench/large_job.py                                   200, 500 and 1,000 workers
  bench/large_job.py --workers 50 --lost 5 --flapping 10     a quick look
  bench/large_job.py --workers 2000                    the largest job that is promised
  bench/large_job.py --workers 200,500,1000 --profile  where the operator's time goes: compare LOGS/*/operator-1.prof

\b
Figures:
  s                until all wanted pods run, or none
  CPU s, RSS MB    of the operator
  requests         of the operator to the API server, by its audit log
  etcd KB          keys and values of the job's records
  status KB        the job's status as JSON; the goal is less than 256
  p99 s            from a loss until its replacement was created; the goal is at most 3

Needs `{BUILD}` (once), and an etcd."""
STATUS_KB, P99 = 256, 3.0
"""The goals."""


def tables(report: LargeReport) -> list[Table]:
    """One row for each phase of each size, and the goals."""
    header = (
        "phase", "workers", "s", "CPU s", "RSS MB", "requests", "all requests", "pods made", "etcd KB", "status KB",
        "p99 s",
    )  # fmt: skip
    rows = tuple(_row(run.workers, phase) for run in report.runs for phase in run.phases)
    judged = Table("Goals", ("goal", "at most", "worst", "met"), goals(report))
    return [Table(f"One job, {report.system}", header, rows), judged]


def _row(workers: int, phase: Phase) -> tuple[str, ...]:
    cost = phase.cost
    return (
        phase.name, f"{workers:,}", f"{cost.seconds:.1f}", f"{cost.cpu:.1f}", f"{cost.rss_mb:.0f}",
        f"{cost.own_requests:,}", f"{cost.all_requests:,}", f"{phase.created:,}", f"{phase.etcd_bytes / 1024:.0f}",
        f"{phase.status_bytes / 1024:.1f}", "" if phase.replaced_p99 is None else f"{phase.replaced_p99:.2f}",
    )  # fmt: skip


def goals(report: LargeReport) -> tuple[tuple[str, str, str, str], ...]:
    """Whether the worst run met each goal."""
    phases = [phase for run in report.runs for phase in run.phases]
    status = max((phase.status_bytes / 1024 for phase in phases), default=0.0)
    slow = max((phase.replaced_p99 or 0.0 for phase in phases), default=0.0)
    return (
        ("status, KB", f"{STATUS_KB}", f"{status:.1f}", "yes" if status < STATUS_KB else "no"),
        ("loss → replacement created, p99, s", f"{P99:.2f}", f"{slow:.2f}", "yes" if slow <= P99 else "no"),
    )


def main(
    *,
    workers: Annotated[str, typer.Option(help="Sizes of the job, separated by commas.")] = "200,500,1000",
    lost: Annotated[int, typer.Option(min=1, help="Workers that are lost at once.")] = 100,
    flapping: Annotated[float, typer.Option(min=0, help="Seconds for which the API server stops and answers.")] = 60,
    system: Annotated[str, typer.Option(help="elastrain or elastrain-slim.")] = "elastrain-slim",
    limit: Annotated[float, typer.Option(min=10, help="Seconds that one phase may take.")] = 1800,
    profile: Annotated[bool, typer.Option("--profile", help="Run the operator under cProfile.")] = False,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    program.choose("--system", system, ["elastrain", "elastrain-slim"])
    sizes = program.numbers("--workers", workers, least=2)
    if (lacks := missing()) is not None:
        program.refuse(lacks)
    where, output = machine(), program.Output("large-job", json, logs, markdown)
    runs: dict[int, LargeRun] = {}
    report = LargeReport(
        machine=where, kubernetes=version("kube-apiserver"), kwok=version("kwok"), system=system, runs=()
    )
    with output.measuring():
        for size in sizes:
            output.begins(f"{size} workers")
            asked, nodes = Size(size, lost, flapping, limit, profile), size * 5 // 4 // GPUS + 2

            def keep(run: LargeRun) -> None:
                nonlocal report
                runs[run.workers] = run
                report = report.model_copy(update={"runs": tuple(runs.values())})
                output.keep(report)

            try:
                measure(system, asked, nodes, output.logs / f"{size}", output.says, keep)
            except Refused as error:
                raise program.Failed(str(error)) from None
    quoted = [f"Kubernetes {report.kubernetes}, kwok {report.kwok}; all processes share the cores."]
    output.show(tables(report), [*where.lines, *quoted])


if __name__ == "__main__":
    program.run(main, HELP)
