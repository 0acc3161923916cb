#!/usr/bin/env python3
"""Held-out losses at equal progress, with the script's batch and with chosen ones. ``--help`` explains its use."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench_convergence import pictures
from bench_convergence.analysis import Compared, Curve, Point, compared
from bench_convergence.names import ENV, Case
from bench_harness import program
from bench_harness.agents import Agents, base_environment, worker
from bench_harness.machine import Machine, machine
from bench_harness.processes import Processes
from bench_harness.stats import Model
from bench_harness.tables import Table
from elastrain.api.settings import BatchSettings, LearningRate, RankSettings

POLL_SECONDS = 0.2
MOST = 32
"""The largest batch, in batches of the script: the noise scale is the bound."""
PARTS = (0.25, 0.5, 0.75, 1.0)
"""Losses are compared at these parts of the progress that all runs have made."""
TASKS = {
    "digits": Case(task="digits", seed=0, epochs=10, samples=1437, base=16, rate=0.015, every=250, out=""),
    "language": Case(task="language", seed=0, epochs=1, samples=6400, base=8, rate=0.004, every=125, out=""),
}
SCRIPTS = "the script's"

HELP = """Train small models with the script's batch, and with batches that follow the noise scale, by each rule of
spec.batch.learningRate, and compare the held-out loss at equal progress: samples times efficiency, as the job counts
them (job.effective_samples). One rank a job. The batch is up to the noise scale, and changes at most each
50 updates: the speed of the machine does not matter.

\b
Examples:
  bench/convergence.py                              all of it, about half an hour
  bench/convergence.py --tasks digits --seeds 2     a quick look
  bench/convergence.py --picture docs/images/convergence.png"""


class Report(Model):
    """Everything."""

    machine: Machine
    curves: tuple[Curve, ...]


def measure(case: Case, rule: str, directory: Path, limit: float) -> Curve:
    """One run. Raises ``Failed`` if it does not finish within ``limit`` seconds."""
    directory.mkdir(parents=True)
    case = case.model_copy(update={"out": str(directory.resolve() / "points.json")})
    batch = None
    if rule:
        batch = BatchSettings(
            min=case.base, max=MOST * case.base, learning_rate=LearningRate(rule), least_ranks=2
        )  # at two ranks, so that a step has two micro-batches
    processes = Processes(directory, base_environment() | {ENV: case.model_dump_json()})
    with Agents(directory, "bench_convergence.train", settings=RankSettings(batch=batch)) as agents:
        try:
            agents.want(1)
            processes.start(worker(0), *agents.node(0))
            end = time.monotonic() + limit
            while processes.runs(worker(0)) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
        finally:
            processes.end(spare=agents.service_pids)
    if not Path(case.out).exists():
        raise program.Failed(f"{case.task} by {rule or SCRIPTS} did not finish within {limit:g} s; logs: {directory}")
    points = (Point.model_validate(dict(zip(Point.model_fields, p, strict=True))) for p in _read(case.out))
    return Curve(task=case.task, rule=rule, seed=case.seed, points=tuple(points))


def _read(path: str) -> list[list[float | None]]:
    found: list[list[float | None]] = jsonlib.loads(Path(path).read_text())
    return found


def table(rows: Sequence[Compared]) -> Table:
    """One row for each rule of a task."""
    at = [f"at {progress:,.0f}" for progress in rows[0].at]
    header = ("batch", "updates", "mean samples", "worth", *at, f"after {rows[0].at[-1]:,.0f} samples")
    return Table(
        f"{rows[0].task}: held-out loss at equal progress, ± one standard deviation over the seeds",
        header,
        tuple(
            (
                row.rule or SCRIPTS, f"{row.updates:,.0f}", f"{row.samples:.0f}", f"{row.worth:.2f}",
                *(f"{loss:.3f} ± {spread:.3f}" for loss, spread in zip(row.losses, row.spreads, strict=True)),
                f"{row.at_samples:.3f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def main(
    *,
    tasks: Annotated[str, typer.Option(help="Of digits, language.")] = "digits,language",
    rules: Annotated[str, typer.Option(help="Of spec.batch.learningRate.")] = "AdaScale,SquareRoot,Linear,Unchanged",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 4,
    picture: Annotated[Path | None, typer.Option(help="File for the curves; needs matplotlib.")] = None,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that one run may take.")] = 600,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    chosen = program.choose("--tasks", tasks, list(TASKS))
    arms = ["", *program.choose("--rules", rules, [rule.value for rule in LearningRate])]
    facts, output = machine(), program.Output("convergence", json, logs, markdown)
    curves: list[Curve] = []
    with output.measuring():
        for seed in range(seeds):
            for task in chosen:
                for rule in arms:
                    output.begins(f"seed {seed}: {task}, {rule or SCRIPTS}")
                    case = TASKS[task].model_copy(update={"seed": seed})
                    curves.append(measure(case, rule, output.logs / f"{task}-{rule or 'script'}-{seed}", limit))
                    output.keep(Report(machine=facts, curves=tuple(curves)))
    if picture is not None:
        pictures.draw(curves, picture)
    tables = [table(compared([c for c in curves if c.task == task], PARTS)) for task in chosen]
    worth = "worth: effective samples of the whole run, as a part of its samples; losses are means over the last 15 %"
    output.show(tables, [worth, f"{seeds} seeds.", *facts.lines])


if __name__ == "__main__":
    program.run(main, HELP)
