#!/usr/bin/env python3
"""What the same bits cost: a step with ``numerics="bitwise"`` beside the default. ``--help`` tells how to use it."""

from __future__ import annotations

import itertools
import json as jsonlib
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from elastrain.cli.local.runner import LocalJob
from rescale_harness.machine import machine
from rescale_harness.report import Table as Words
from rescale_harness.report import conditions, markdown_table, render
from rescale_harness.results import Machine

HERE = Path(__file__).parent
SKIPPED = 10
"""First steps, which are not counted: caches, rebuilt buckets."""
QUIET = 0.5
"""Load average above which somebody else used the machine."""
PATIENCE = 300.0
"""Seconds that one run may take."""
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"numerics": "exact", "loader": {}},
    "default, micro_batch_size=8": {"numerics": "exact", "loader": {"micro_batch_size": 8}},
    "bitwise, micro_batches=4": {"numerics": "bitwise", "loader": {"micro_batches": 4}},
    "bitwise, micro_batches=8": {"numerics": "bitwise", "loader": {"micro_batches": 8}},
}
WORKLOAD = (
    "a perceptron of 9.2 million float32 parameters with Adam, 32 samples a step over all ranks, one thread a rank, "
    "over loopback"
)

HELP = f"""Measure the time of a step in both numerics, at 1, 2 and 3 ranks, on one machine that does nothing else.

Workload: {WORKLOAD}. Variants and sizes take turns, run by run.

\b
Examples:
  bench/numerics.py                                              all of it, about ten minutes
  bench/numerics.py --runs 1 --steps 30 --worlds 1,2             a quick look
  bench/numerics.py --render numerics.json --into docs/numerics.md   the table of an earlier run, into that page

Figures are the median step and its 10th and 90th percentile over all counted steps of all runs, in milliseconds.
"""


class Figures(BaseModel):
    """Of one variant at one world size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: str
    world: int
    steps: list[float]
    """Seconds of each counted step of all runs."""

    def quantile(self, percent: int) -> float:
        return statistics.quantiles(self.steps, n=100, method="inclusive")[percent - 1]


class Report(BaseModel):
    """What ``--json`` writes and ``--render`` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    began: str
    runs: int
    figures: list[Figures]

    def default(self, world: int) -> float:
        return next(f for f in self.figures if f.variant == "default" and f.world == world).quantile(50)


def measure(variant: str, world: int, steps: int) -> list[float]:
    """Seconds of each counted step of one job. Raises ``RuntimeError`` with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="elastrain-numerics-") as folder:
        place, times = Path(folder), Path(folder) / "times.json"
        container = {
            "name": "trainer",
            "image": "local",
            "command": [sys.executable, str(HERE / "train_numerics.py")],
        }
        manifest = {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "ElasticTrainingJob",
            "metadata": {"name": "numerics"},
            "spec": {
                "minReplicas": world,
                "maxReplicas": world,
                "replicas": world,
                "template": {"spec": {"containers": [container]}},
            },
        }
        (place / "job.yaml").write_text(yaml.safe_dump(manifest))
        options = {**VARIANTS[variant], "steps": steps + SKIPPED}
        environment = {"NUMERICS_OPTIONS": jsonlib.dumps(options), "NUMERICS_TIMES": str(times)}
        lines: list[str] = []
        with LocalJob(
            place / "job.yaml",
            state_dir=place / "state",
            environment=environment,
            on_line=lambda worker, line: lines.append(f"{worker} │ {line}"),
        ) as job:
            job.wait(timeout=PATIENCE, what=f"{variant} at {world} ranks to finish")
        if not times.exists():
            raise RuntimeError(f"{variant} at {world} ranks:\n" + "\n".join(lines[-20:]))
        committed = jsonlib.loads(times.read_text())
    return [b - a for a, b in itertools.pairwise(committed[SKIPPED - 1 :])]


def rows(report: Report) -> list[tuple[str, ...]]:
    found = []
    for variant in dict.fromkeys(f.variant for f in report.figures):
        row = [variant]
        for f in (f for f in report.figures if f.variant == variant):
            low, middle, high = (f.quantile(p) for p in (10, 50, 90))
            row.append(f"{middle * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f})")
            row.append(f"{middle / report.default(f.world):.2f}")
        found.append(tuple(row))
    return found


def header(report: Report) -> list[str]:
    worlds = dict.fromkeys(f.world for f in report.figures)
    return ["step, ms", *itertools.chain(*([f"{w} rank{'s' if w > 1 else ''}", "× default"] for w in worlds))]


def notes(report: Report) -> list[str]:
    m = report.machine
    counted = len(report.figures[0].steps)
    noise = (
        ["The machine was not quiet: others' work is in these figures, in the ratios too."] if m.load > QUIET else []
    )
    return [
        *noise,
        f"Median and 10th to 90th percentile of {counted} steps, runs: {report.runs}; {WORKLOAD}.",
        conditions(report.machine, report.began),
    ]


def markdown(report: Report) -> str:
    table = markdown_table(Words(tuple(header(report)), tuple(rows(report))))
    return table + "\n\n" + "\n".join(f"- {note}" for note in notes(report)) + "\n"


def show(report: Report, console: Console) -> None:
    table = Table(*header(report), header_style="bold")
    for row in rows(report):
        table.add_row(*row)
    console.print(table)
    for note in notes(report):
        console.print(f"• {note}", style="dim", highlight=False, soft_wrap=True)


def main(
    *,
    json: Annotated[Path, typer.Option(help="Where every figure is written.")] = Path("numerics.json"),
    runs: Annotated[int, typer.Option(min=1, help="Of each variant at each size.")] = 3,
    steps: Annotated[int, typer.Option(min=10, help="Counted steps of a run.")] = 60,
    worlds: Annotated[str, typer.Option(help="Numbers of ranks.")] = "1,2,3",
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if render_ is not None:
        render(render_, into, Report, markdown)
        return
    console = Console()
    facts, began = machine(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    cases = list(itertools.product(VARIANTS, [int(w) for w in worlds.split(",")]))
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for run in range(1, runs + 1):
        for variant, world in cases:
            start = time.monotonic()
            seconds[variant, world] += measure(variant, world, steps)
            console.print(f"run {run}: {variant}, {world} ranks: {time.monotonic() - start:.0f} s", style="dim")
    report = Report(
        machine=facts,
        began=began,
        runs=runs,
        figures=[Figures(variant=v, world=w, steps=s) for (v, w), s in seconds.items()],
    )
    json.write_text(report.model_dump_json(indent=1) + "\n")
    show(report, console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
