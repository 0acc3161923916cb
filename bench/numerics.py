#!/usr/bin/env python3
"""The cost of bitwise numerics: a step with ``numerics="bitwise"`` beside the default. ``--help`` explains its use."""

from __future__ import annotations

import itertools
import json as jsonlib
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bench_harness import program
from bench_harness.agents import Agents, base_environment, worker
from bench_harness.machine import Machine, machine
from bench_harness.names import ENV_NUMERICS, WORKLOAD
from bench_harness.processes import Processes
from bench_harness.stats import Model
from bench_harness.tables import Table

SKIPPED = 10
"""First steps, which are not counted: caches, rebuilt buckets."""
POLL_SECONDS = 0.2
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"numerics": "exact", "loader": {}},
    "default, micro_batch_size=8": {"numerics": "exact", "loader": {"micro_batch_size": 8}},
    "bitwise, micro_batches=4": {"numerics": "bitwise", "loader": {"micro_batches": 4}},
    "bitwise, micro_batches=8": {"numerics": "bitwise", "loader": {"micro_batches": 8}},
}

HELP = """Measure the time of a step in both numerics, at 1, 2 and 3 ranks, on a machine that does nothing else.

Variants and sizes take turns, run by run. Figures are the median step and its 10th and 90th percentile over all counted
steps of all runs, in milliseconds.

\b
Examples:
  bench/numerics.py                                    all of it, about ten minutes
  bench/numerics.py --runs 1 --steps 30 --worlds 1,2   a quick look"""


class Figures(Model):
    """One variant at one world size."""

    variant: str
    world: int
    steps: tuple[float, ...]
    """Seconds of each counted step of all runs."""

    def quantile(self, percent: int) -> float:
        return statistics.quantiles(self.steps, n=100, method="inclusive")[percent - 1]


class Report(Model):
    """Everything."""

    machine: Machine
    runs: int
    figures: tuple[Figures, ...]


def measure(variant: str, world: int, steps: int, directory: Path, limit: float) -> list[float]:
    """Seconds of each counted step of one job. Raises ``Failed`` if it does not finish within ``limit`` seconds."""
    directory.mkdir(parents=True)
    times = directory.resolve() / "times.json"
    options = {**VARIANTS[variant], "steps": steps + SKIPPED, "times": str(times)}
    processes = Processes(directory, base_environment() | {ENV_NUMERICS: jsonlib.dumps(options)})
    nodes = [worker(n) for n in range(world)]
    with Agents(directory, "bench_harness.train_numerics") as agents:
        try:
            agents.want(world, least=world)
            for number, name in enumerate(nodes):
                processes.start(name, *agents.node(number))
            end = time.monotonic() + limit
            while any(processes.runs(name) for name in nodes) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
        finally:
            processes.end(spare=agents.service_pids)
    if not times.exists():
        raise program.Failed(f"{variant} at {world} ranks did not finish within {limit:g} s; logs: {directory}")
    committed = jsonlib.loads(times.read_text())
    return [b - a for a, b in itertools.pairwise(committed[SKIPPED - 1 :])]


def table(report: Report) -> Table:
    """One row for each variant; each size has its median and the ratio to the default at that size."""
    by_case = {(f.variant, f.world): f for f in report.figures}
    worlds = dict.fromkeys(f.world for f in report.figures)
    rows = []
    for variant in dict.fromkeys(f.variant for f in report.figures):
        row = [variant]
        for world in worlds:
            low, middle, high = (by_case[variant, world].quantile(p) for p in (10, 50, 90))
            row.append(f"{middle * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f})")
            row.append(f"{middle / by_case['default', world].quantile(50):.2f}")
        rows.append(tuple(row))
    columns = itertools.chain(*([f"{w} rank{'s' if w > 1 else ''}", "× default"] for w in worlds))
    return Table("Time of a step", ("step, ms", *columns), tuple(rows))


def main(
    *,
    runs: Annotated[int, typer.Option(min=1, help="Of each variant at each size.")] = 3,
    steps: Annotated[int, typer.Option(min=10, help="Counted steps of a run.")] = 60,
    worlds: Annotated[str, typer.Option(help="Numbers of ranks.")] = "1,2,3",
    limit: Annotated[float, typer.Option(min=10, help="Seconds that one run may take.")] = 300,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    cases = list(itertools.product(VARIANTS, program.numbers("--worlds", worlds)))
    facts, output = machine(), program.Output("numerics", json, logs, markdown)
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}

    def report() -> Report:
        figures = (Figures(variant=v, world=w, steps=tuple(s)) for (v, w), s in seconds.items() if s)
        return Report(machine=facts, runs=runs, figures=tuple(figures))

    with output.measuring():
        for run in range(1, runs + 1):
            for number, (variant, world) in enumerate(cases):
                output.begins(f"run {run} of {runs}: {variant}, {world} ranks")
                directory = output.logs / f"{run}-{number}"
                seconds[variant, world] += measure(variant, world, steps, directory, limit)
                output.keep(report())
    counted = f"Median (10th to 90th percentile) of {runs * steps} steps, runs: {runs}."
    output.show([table(report())], [counted, f"{WORKLOAD}, 32 samples a step over all ranks.", *facts.lines])


if __name__ == "__main__":
    program.run(main, HELP)
