#!/usr/bin/env python3
"""What checkpoints cost, beside torch's own asynchronous ones. ``--help`` explains its use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_checkpoint.analysis import RunFigures
from bench_checkpoint.run import Run
from bench_checkpoint.systems import SYSTEMS
from bench_harness import program
from bench_harness.machine import Machine, machine
from bench_harness.stats import Model, text
from bench_harness.tables import Table

HELP = """Measure what a checkpoint costs training, how long it takes, and how long a job needs to resume from it.

Two ranks train the perceptron of 9.2 million parameters (110 MB of state) on this machine and save every few steps in
the background. Then all processes are killed, and new ones resume. Systems take turns, run by run; a run takes one to
two minutes. All write below --logs: choose a directory on the disk that is to be measured.

\b
Examples:
  bench/checkpoint.py                                             all systems, three runs: half an hour
  bench/checkpoint.py --systems elastrain,dcp --runs 1 --saves 2  a quick look
  bench/checkpoint.py --state-mib 1024                            with a gigabyte of frozen weights

\b
Figures:
  step       an undisturbed step
  extra      what the steps during one save take longer, all together
  longest    the longest step during a save
  save       from the commit of the saved step until a restart would take the checkpoint
  start      from the start of the processes to the first step, without a checkpoint
  resume     the same from the newest checkpoint, after all processes were killed

\b
Systems:
{}""".format("\n".join(f"  {name:18}{system.about}" for name, system in SYSTEMS.items()))


class Report(Model):
    """Everything."""

    machine: Machine
    every: int
    runs: tuple[RunFigures, ...]


def table(report: Report) -> Table:
    """One row for each system: minimum / median / maximum over saves and runs."""
    rows = []
    for system in dict.fromkeys(run.system for run in report.runs):
        runs = [run for run in report.runs if run.system == system]
        extra = [value for run in runs for value in run.extra]
        row = (
            system,
            f"{max(run.state_bytes for run in runs) / 1e6:.0f}",
            text((run.step for run in runs), ".0f", 1e3),
            text(extra, ".2f"),
            text((e / (run.step * report.every) for run in runs for e in run.extra), ".1f", 100),
            text((value for run in runs for value in run.longest), ".0f", 1e3),
            text((value for run in runs for value in run.saves), ".2f"),
            text((run.start for run in runs), ".1f"),
            text((run.resume for run in runs), ".1f"),
        )
        rows.append(row)
    header = ("system", "MB", "step ms", "extra s", "extra %", "longest ms", "save s", "start s", "resume s")
    return Table("Cost of a checkpoint", header, tuple(rows))


def measure(
    name: str, directory: Path, every: int, saves: int, state_mib: int, limit: float, output: program.Output
) -> RunFigures:
    """One run of a system in its new ``directory``."""
    directory.mkdir(parents=True)
    return Run(name, SYSTEMS[name](directory.resolve(), every), saves, state_mib, limit, output).figures()


def main(
    *,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each system; publish no fewer than 3.")] = 3,
    saves: Annotated[int, typer.Option(min=2, help="Of a run; the first one does not count.")] = 5,
    every: Annotated[int, typer.Option(min=5, help="Steps between two checkpoints.")] = 30,
    state_mib: Annotated[int, typer.Option(min=0, help="Frozen weights below the model, in steps of 64.")] = 0,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the training of a run may take.")] = 600,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    names = program.choose("--systems", systems, list(SYSTEMS))
    facts, output = machine(), program.Output("checkpoint", json, logs, markdown)
    done: list[RunFigures] = []
    with output.measuring():
        for run in range(1, runs + 1):
            for name in names:
                output.begins(f"run {run} of {runs}: {name}")
                done.append(measure(name, output.logs / f"{name}-{run}", every, saves, state_mib, limit, output))
                output.keep(Report(machine=facts, every=every, runs=tuple(done)))
    notes = [
        "Three figures are minimum / median / maximum over all saves but the first one of each run.",
        f"extra % of the steps between two checkpoints, which are {every}.",
        *(f"{name}: {SYSTEMS[name].about}." for name in names),
        *facts.lines,
    ]
    output.show([table(Report(machine=facts, every=every, runs=tuple(done)))], notes)


if __name__ == "__main__":
    program.run(main, HELP)
