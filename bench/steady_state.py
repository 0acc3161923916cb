#!/usr/bin/env python3
"""The cost of elastrain while nothing happens, beside plain DDP in the same processes. ``--help`` explains its use."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_steady.analysis import Comparison
from bench_steady.case import Case
from bench_steady.drive import drive
from bench_steady.report import NOTE, Report, table

CASES = (
    (Case(workload="perceptron", ranks=2, baseline="ddp", block=4, quads=16, starts=8), 0.16),
    (Case(workload="perceptron", ranks=2, baseline="views", block=4, quads=16, starts=8), 0.16),
    (Case(workload="perceptron", ranks=2, baseline="ddp", subject="control", block=4, quads=16, starts=8), 0.16),
    (Case(workload="perceptron", ranks=2, baseline="ddp", block=4, quads=16, starts=8, kept=4), 0.16),
    (Case(workload="tiny", ranks=2, baseline="ddp", block=50, quads=30, starts=4), 0.005),
    (Case(workload="tiny", ranks=1, baseline="ddp", block=100, quads=30, starts=4), 0.002),
    (Case(workload="tiny", ranks=1, baseline="bare", block=100, quads=30, starts=4), 0.002),
)
"""With the approximate seconds of a step."""
START_SECONDS = 8
"""Approximate seconds of a start."""

HELP = """Measure what elastrain costs a training step while nothing happens.

Two agents with a rank each train the same model twice in each process, under elastrain and as a plain DDP script with a
gloo group of its own, in turns: a block of steps of one, two of the other, one of the first. Such a quad gives one
ratio. All processes are started anew several times, since the placement of their memory favours one or the other. The
table has the median over quads and its 95 % bootstrap interval, of wall time and of processor time. Durable checkpoints
and the audit log, which plain DDP does not have, are off. Use a machine that does nothing else: wall time with ranks
that wait for a processor means little, processor time suffers less.

\b
Cases (--cases): WORKLOAD-RANKS-BASELINE, and control: plain DDP in elastrain's place
{cases}

\b
perceptron  9.2 million parameters, Adam, 32 samples a step
tiny        2,800 parameters, which shows the fixed cost of a step
ddp         DistributedDataParallel over gloo, default options
views       the same with gradient_as_bucket_view=True, which elastrain uses
kept-4      one update for the gradients of four steps, which add up in .grad
bare        the model without DDP, in one process without collectives

\b
Examples:
  bench/steady_state.py                                            all cases, half an hour
  bench/steady_state.py --cases tiny-1-bare --starts 1 --quads 4   a quick look
  bench/steady_state.py --cases perceptron-2-ddp --device cuda     on GPUs; the ranks share them in turn""".format(
    cases="\n".join(
        f"  {c.name:26}about {c.starts * (START_SECONDS + 4 * c.block * c.quads * step):.0f} s" for c, step in CASES
    )
)


def main(
    *,
    cases: Annotated[str, typer.Option(help="Which, in this order; 'all': every one.")] = "all",
    quads: Annotated[int | None, typer.Option(min=2, help="Of each start. Default: 16, 30.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Of all processes. Default: 8, 4.")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the ranks train.")] = "cpu",
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the blocks of a start may take.")] = 1800,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    known = {case.name: case for case, _ in CASES}
    names = list(known) if cases == "all" else program.choose("--cases", cases, list(known))
    devices, facts = program.cards(device), machine()
    output = program.Output("steady", json, logs, markdown)
    done: list[Comparison] = []
    with output.measuring():
        for name in names:
            given = {"quads": quads or known[name].quads, "starts": starts or known[name].starts, "device": device}
            case = known[name].model_copy(update=given)
            output.begins(f"{name}: {case.starts} starts, {case.quads} quads of {4 * case.block} steps each")
            done.append(drive(case, output.logs / name, limit, devices))
            output.keep(Report(machine=facts, comparisons=tuple(done)))
    report = Report(machine=facts, comparisons=tuple(done))
    output.show([table(report)], [NOTE, *facts.lines])


if __name__ == "__main__":
    program.run(main, HELP)
