#!/usr/bin/env python3
"""Effective training time under published failures, beside torchrun and torchft. ``--help`` explains its use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bench_ettr.drive import Drive, Limits
from bench_ettr.report import notes, tables
from bench_ettr.results import Report, RunResult
from bench_ettr.systems import SYSTEMS
from bench_ettr.trace import CAUSES, KINDS, PUBLISHED_RATE, trace
from bench_harness import program
from bench_harness.agents import MAX_NODES
from bench_harness.machine import machine
from bench_harness.names import ENV_HIDDEN, ENV_PACE, ENV_RANKS
from bench_rescale.systems import Settings

HIDDEN = 256
"""Width of the model: 0.6 million parameters, so that recovery and not the model fills the cores."""
HELP = """Measure how much of the time a job trains while nodes die, freeze, slow down and are reclaimed.

Real processes, one rank a node, all on this machine; the systems take turns under the same failures. These are drawn
from the causes that Llama 3's pre-training published (466 interruptions in 54 days on 16,384 cards, {rate:.2f} an
hour), more often: --rate. The same --seed, --rate and --minutes give the same failures.

ETTR is productive time by wall clock: committed samples that count, times the time of a sample in an undisturbed step
of the same run at full size. The first start of a job is not measured. The rest is lost time by cause. Each pause is
blamed on the first event within it, or the newest one before it. *Of paid* counts spares, and no node between its
loss and its replacement.

Steps are paced: a small real step (forward, backward, sums, update), and --pace for each sample, the time of an
accelerator played by a wait. So a few cores carry the ranks, a missing node is missed, and other work on the machine
disturbs less. A node that ends by itself is started again; a job without a step for --hang seconds, too.

\b
Examples:
  bench/ettr.py --minutes 3 --systems elastrain                  a quick look
  bench/ettr.py --ranks 8 --minutes 30 --torchft-python .torchft/bin/python
                --systems elastrain,torchrun-dcp,torchft         the whole series: 95 minutes
  bench/ettr.py --rate 30 --minutes 60                           fewer failures, for longer

\b
Systems:
{systems}

\b
Failures (weights as published):
{kinds}""".format(
    rate=PUBLISHED_RATE,
    systems="\n".join(f"  {name:14}{system.about}" for name, system in SYSTEMS.items()),
    kinds="\n".join(
        f"  {kind:11}{sum(count for count, k in CAUSES.values() if k is kind):>4}  {about}"
        for kind, about in KINDS.items()
    ),
)


def main(
    *,
    ranks: Annotated[int, typer.Option(min=2, max=MAX_NODES, help="One a node.")] = 4,
    spares: Annotated[int, typer.Option(min=0, help="Warm nodes of elastrain; the others have none.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.1, help="Of each system.")] = 30,
    rate: Annotated[float, typer.Option(min=0.1, help="Failures an hour.")] = 120,
    seed: Annotated[int, typer.Option(help="Of the failures.")] = 1,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = "elastrain,torchrun-dcp",
    repair: Annotated[float, typer.Option(min=1, help="Seconds until a lost node is replaced.")] = 10,
    pace: Annotated[float, typer.Option(min=0, help="Milliseconds of a sample; 0: only what the model takes.")] = 10,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between durable checkpoints.")] = 20,
    start: Annotated[float, typer.Option(min=10, help="Seconds that the start of a job may take.")] = 180,
    hang: Annotated[float, typer.Option(min=10, help="Seconds without a step until all nodes are restarted.")] = 60,
    torchft_python: Annotated[
        Path | None, typer.Option(help="Python of a virtual environment with torchft, for torchft.")
    ] = None,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    names = program.choose("--systems", systems, list(SYSTEMS))
    settings = Settings(checkpoint_every, torchft_python=torchft_python)
    for name in names:
        if (lacks := SYSTEMS[name].missing(settings)) is not None:
            program.refuse(lacks)
    facts, done = machine(), list[RunResult]()
    failures = trace(seed, rate, minutes)
    output = program.Output("ettr", json, logs, markdown)
    os.environ.update({ENV_RANKS: str(ranks), ENV_HIDDEN: str(HIDDEN), ENV_PACE: str(pace / 1000)})

    def report() -> Report:
        return Report(
            machine=facts, ranks=ranks, spares=spares, minutes=minutes, rate=rate, seed=seed, repair=repair,
            pace=pace / 1000, checkpoint_every=checkpoint_every, runs=tuple(done),
        )  # fmt: skip

    with output.measuring():
        for i, name in enumerate(names, 1):
            output.begins(f"{i}/{len(names)}: {name}, {len(failures)} failures in {minutes:g} minutes")
            directory = output.logs / name
            directory.mkdir(parents=True)
            drive = Drive(SYSTEMS[name](directory, settings), ranks, spares, Limits(repair, start, hang), output)
            done.append(drive.run(name, failures, minutes))
            output.says(f"  {name}: {done[-1].ettr:.2%} trains")
            output.keep(report())
    output.show(tables(report()), notes(report()))


if __name__ == "__main__":
    program.run(main, HELP)
