#!/usr/bin/env python3
"""Sizes of many elastic jobs, in simulation. ``--help`` explains its use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from bench_harness import program
from bench_scheduling import decisions, kit, report
from bench_scheduling import pictures as drawing
from bench_scheduling.decisions import Decision
from bench_scheduling.kit import Played, Run
from elastrain_operator.allocation.snapshot import Sharing

POLICIES = ("tiresias", "fair", *Sharing)
INTERVALS = {30.0: 60, 1.0: 10}
"""Seconds of a rescale → of an interval of the simulation: as published, and short enough to follow demand."""
KIT = Path(__file__).parent.parent.parent / "shared" / "scheduling"

HELP = """Play published workloads of training jobs on a simulated cluster, with sizes by the product's own `allocate`.

160 jobs arrive within 8 hours at 16 nodes with 4 GPUs each. Steps take what was measured on T4 GPUs for Pollux (OSDI
2021). A job tells the allocator what it has run itself, and nothing else. Beside it: Tiresias
with tuned sizes (rigid), equal shares (`fair`, the simulator's own), and the published completion times. The simulator
and its data are not part of this repository: --kit names their folder (sim.py, model.py, policies.py, data/).
docs/sharing.md says what the figures show, and what they do not.

\b
Examples:
  bench/scheduling.py                                              8 workloads, rescales of 30 s and 1 s
  bench/scheduling.py --load 2.0 --policies equal,efficient        scarce GPUs
  bench/scheduling.py --batch free --policies efficient            jobs choose their batches
  bench/scheduling.py --rescale 1 --placement kept                 workers stay on their nodes
  bench/scheduling.py --decisions                                  the time of one decision, without the kit

\b
Figures:
  mean, median, p99   completion time (end - arrival) in seconds; makespan: end of the last job
  rho                 completion time over that on a fair part of the cluster: the largest, and the part of jobs above 1
  rescales            of a job, without its start
  GPU-hours           held by all jobs"""


class Report(BaseModel):
    """All figures."""

    runs: list[Played] = []
    decisions: list[Decision] = []


def played(runs: Sequence[Run], folder: Path, processes: int, output: program.Output) -> list[Played]:
    """All runs, the figures kept after each."""
    done: list[Played] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(kit.play, folder, run) for run in runs]):
            done.append(future.result())
            run, mean = done[-1].run, done[-1].figures["mean"]
            output.says(f"{run.policy}, workload {run.workload}, rescale {run.rescale:g} s: mean {mean:.0f} s")
            output.keep(Report(runs=done))
    return sorted(done, key=lambda p: runs.index(p.run))


def main(
    *,
    folder: Annotated[Path, typer.Option("--kit", help="Folder of the simulator.")] = KIT,
    policies: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(POLICIES),
    workloads: Annotated[str, typer.Option(help="Of the eight.")] = ",".join(kit.WORKLOADS),
    load: Annotated[str, typer.Option(help="1.0, 2.0 or realistic.")] = "1.0",
    batch: Annotated[str, typer.Option(help="fixed: the users'; free: within bounds, by goodput.")] = "fixed",
    rescale: Annotated[str, typer.Option(help="Seconds of a rescale: 30 decides each 60 s, 1 each 10 s.")] = "30,1",
    placement: Annotated[str, typer.Option(help="anew: by the simulator; kept: workers stay on their nodes.")] = "anew",
    processes: Annotated[int, typer.Option(min=1, help="Simulations at a time.")] = os.cpu_count() or 1,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for two pictures, of the shortest rescale; needs matplotlib.")
    ] = None,
    only_decisions: Annotated[
        bool, typer.Option("--decisions", help="Only the time of a decision, for 160 and 5,000 jobs.")
    ] = False,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    names = program.choose("--policies", policies, POLICIES)
    which = program.choose("--workloads", workloads, kit.WORKLOADS)
    batches = program.choose("--batch", batch, ("fixed", "free"))
    places = program.choose("--placement", placement, ("anew", "kept"))
    program.choose("--load", load, ("1.0", "2.0", "realistic"))
    seconds = [float(s) for s in program.choose("--rescale", rescale, [f"{s:g}" for s in INTERVALS])]
    if not only_decisions and (lacks := kit.missing(folder)):
        program.refuse(f"--kit {str(folder)!r}: {lacks} is missing: name the simulator's folder")
    output = program.Output("scheduling", json, logs, markdown)
    with output.measuring():
        if only_decisions:
            output.begins("decisions")
            found = decisions.measure()
            output.keep(Report(decisions=found))
        else:
            runs = [
                Run(name, workload, s, INTERVALS[s], load, free, place)
                for s in seconds
                for free in batches
                for place in places
                for name in names
                for workload in which
                if name in list(Sharing) or (place == "anew" and free == "fixed")
            ]
            output.begins(f"{len(runs)} simulations")
            done = played(runs, folder, processes, output)
    if only_decisions:
        output.show([report.decisions(found)], report.DECISION_NOTES)
    else:
        output.show(report.tables(done, folder), report.NOTES)
        for picture in drawing.draw(done, folder, pictures) if pictures else ():
            output.says(f"drew {picture}")


if __name__ == "__main__":
    program.run(main, HELP)
