#!/usr/bin/env python3
"""The cost of a step of a sharded model while nothing happens, beside plain FSDP2. ``--help`` explains its use."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_steady.analysis import Comparison
from bench_steady.case import Case
from bench_steady.drive import drive
from bench_steady.report import NOTE, Report, table, votes_table

_PLAIN = Case(workload="perceptron", ranks=2, baseline="fsdp2", block=4, quads=12, starts=4, shards=2)
_ONE_COPY = _PLAIN.model_copy(update={"shards": "all"})
CASES = (
    (_PLAIN, "one group of two ranks"),
    (_PLAIN.model_copy(update={"ranks": 4}), "two groups of two ranks that replicate each other (HSDP)"),
    (_ONE_COPY, "shards: all over two ranks, without snapshots"),
    (_ONE_COPY.model_copy(update={"max_redone_steps": 20}), "with a snapshot every 10 steps"),
    (_ONE_COPY.model_copy(update={"max_redone_steps": 4}), "with a snapshot every 2 steps"),
    (_PLAIN.model_copy(update={"subject": "control"}), "plain FSDP2 in elastrain's place"),
)
STEP_SECONDS = 0.16
START_SECONDS = 10

HELP = """Measure what elastrain costs a step of a sharded model while nothing happens.

As bench/steady_state.py: each process trains under elastrain and by plain FSDP2 over gloo, in turns, and a quad of
blocks gives one ratio. FSDP2 binds parameters to a mesh, so each variant has a model of its own. A second table has the
cost of the vote by which a step counts: of each step the shortest over the ranks, since the others wait for the last
one. Use a machine that does nothing else, with a core for each rank.

\b
Cases (--cases):
{cases}

\b
Examples:
  bench/sharded_steps.py                                                  all cases, 15 minutes
  bench/sharded_steps.py --cases groups-1x2 --starts 1 --quads 2          a quick look""".format(
    cases="\n".join(f"  {case.name:22}{about}" for case, about in CASES)
)


def main(
    *,
    cases: Annotated[str, typer.Option(help="Which, in this order; 'all': every one.")] = "all",
    quads: Annotated[int | None, typer.Option(min=2, help="Of each start. Default: 12.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Of all processes. Default: 4.")] = None,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the blocks of a start may take.")] = 600,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    known = {case.name: case for case, _ in CASES}
    names = list(known) if cases == "all" else program.choose("--cases", cases, list(known))
    facts = machine()
    output = program.Output("sharded-steps", json, logs, markdown)
    done: list[Comparison] = []
    with output.measuring():
        for name in names:
            case = known[name].model_copy(
                update={"quads": quads or known[name].quads, "starts": starts or known[name].starts}
            )
            about = case.starts * (START_SECONDS + 4 * case.block * case.quads * STEP_SECONDS)
            output.begins(f"{name}: {case.starts} starts, {case.quads} quads of {4 * case.block} steps, {about:.0f} s")
            done.append(drive(case, output.logs / name, limit, 1))
            output.keep(Report(machine=facts, comparisons=tuple(done)))
    report = Report(machine=facts, comparisons=tuple(done))
    output.show([table(report), votes_table(report)], [NOTE, *facts.lines])


if __name__ == "__main__":
    program.run(main, HELP)
