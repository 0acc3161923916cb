#!/usr/bin/env python3
"""What elastrain costs while nothing happens, beside plain DDP in the same processes. ``--help`` tells how."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel, ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from elastrain.cli.shell.terminal import EXIT_INTERRUPTED
from elastrain.etcd.server import EtcdNotFound
from rescale_harness.machine import machine
from rescale_harness.results import Machine
from steady_harness.analysis import GOAL, Comparison, Interval
from steady_harness.case import Case
from steady_harness.drive import Failed, Outcome, drive
from steady_harness.profile import Row

CASES = (
    (Case(workload="perceptron", ranks=2, baseline="ddp", block=4, quads=16, starts=8), 0.16),
    (Case(workload="perceptron", ranks=2, baseline="views", block=4, quads=16, starts=8), 0.16),
    (Case(workload="perceptron", ranks=2, baseline="ddp", subject="control", block=4, quads=16, starts=8), 0.16),
    (Case(workload="tiny", ranks=2, baseline="ddp", block=50, quads=30, starts=4), 0.005),
    (Case(workload="tiny", ranks=1, baseline="ddp", block=100, quads=30, starts=4), 0.002),
    (Case(workload="tiny", ranks=1, baseline="bare", block=100, quads=30, starts=4), 0.002),
)
"""With the seconds that a step takes, roughly."""
START_SECONDS = 8
"""That a start takes, roughly."""
TOP = 25
EXIT_FAILED = 1

HELP = """Measure what elastrain costs a training step while nothing happens.

Two agents with a rank each train the same model twice in each process, under elastrain and as a plain DDP script with a
gloo group of its own, in turns: a block of steps of one, two of the other, one of the first. Such a quad gives one
ratio. All processes are started anew some times, since where their memory happens to lie favours one or the other.
Printed are the median over quads and its 95 % bootstrap interval, of wall time and of processor time. Durable
checkpoints and the audit log, which plain DDP has not, are off. Use a machine that does nothing else: the wall time of
ranks that wait for a processor says nothing. Processor time suffers less.

\b
Cases (--cases): WORKLOAD-RANKS-BASELINE, and control: plain DDP in elastrain's place
{cases}

\b
perceptron  9.2 million parameters, Adam, 32 samples a step
tiny        2,800 parameters, so that the fixed cost of a step shows
ddp         DistributedDataParallel over gloo, as a script has it that gives no options
views       the same with gradient_as_bucket_view=True, which elastrain's own DDP has
bare        the model as it is, in one process without collectives

\b
Examples:
  bench/steady_state.py                                    all cases, 25 minutes
  bench/steady_state.py --cases tiny-1-bare --profile      where the fixed microseconds go

Exit codes: 0 measured (whether the goal is kept, the table says), 1 a case failed, 2 cannot be started as asked, 130
interrupted.
""".format(
    cases="\n".join(
        f"  {c.name:26}about {c.starts * (START_SECONDS + 4 * c.block * c.quads * step):.0f} s" for c, step in CASES
    )
)


class Report(BaseModel):
    """What ``--json`` writes."""

    model_config = ConfigDict(frozen=True)

    machine: Machine
    load_after: float
    comparisons: list[Comparison]
    profiles: dict[str, list[Row]]
    """By the case's name."""


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def choose(given: str) -> list[Case]:
    known = {case.name: case for case, _ in CASES}
    words = list(known) if given == "all" else [word.strip() for word in given.split(",")]
    for word in words:
        if word not in known:
            refuse(f"--cases: {word!r} must be all, or some of {', '.join(known)}")
    return [known[word] for word in words]


def show(outcomes: list[Outcome], console: Console) -> None:
    """The figures, as the median over quads (95 % interval)."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    header = ("case", "step", "wall %", f"≤ {GOAL:.1%}", "wall µs", "cpu %", "cpu µs a rank", "agent cpu", "etcd cpu")
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for c in (outcome.comparison for outcome in outcomes):
        table.add_row(
            c.case.name,
            f"{1000 * c.step:.2f} ms",
            spread(c.ratio, 100, ".2f"),
            c.verdict,
            spread(c.micros, 1, ".0f"),
            spread(c.cpu_ratio, 100, ".2f"),
            spread(c.cpu_micros, 1, ".0f"),
            "–" if c.agent_cpu is None else f"{c.agent_cpu:.2%}",
            "–" if c.etcd_cpu is None else f"{c.etcd_cpu:.2%}",
        )
    console.width = max(console.width, 180)
    console.print(table)
    for outcome in outcomes:
        if outcome.profile:
            show_profile(outcome, console)


def spread(interval: Interval, scale: float, form: str) -> str:
    low, median, high = (format(scale * v, form) for v in (interval.low, interval.median, interval.high))
    return f"{median} ({low} to {high})"


def show_profile(outcome: Outcome, console: Console) -> None:
    case = outcome.comparison.case
    title = f"{case.name}: microseconds of a step on rank 0 under cProfile, {outcome.profiled_steps} steps"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("function", "calls", "own", "own, less the baseline's", "with what it calls"):
        table.add_column(name, justify="left" if name == "function" else "right")
    for row in outcome.profile[:TOP]:
        table.add_row(row.function, *(f"{v:.1f}" for v in (row.calls, row.own, row.extra, row.whole)))
    total = sum(row.extra for row in outcome.profile)
    table.add_row("all", "", "", f"{total:.1f}", "")
    console.print(table)


def main(
    *,
    cases: Annotated[str, typer.Option(help="Which, in this order.")] = "all",
    quads: Annotated[int | None, typer.Option(min=2, help="Of each start. Default: 16, 30.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Of all processes. Default: 8, 4.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Then show where the difference goes.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where the figures are written. Default: LOGS/steady.json.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Default: bench/results/steady-TIME.")] = None,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the blocks of a start may take.")] = 1800,
) -> None:
    chosen = [
        case.model_copy(update={"profile": profile, "quads": quads or case.quads, "starts": starts or case.starts})
        for case in choose(cases)
    ]
    try:
        facts = machine()
    except EtcdNotFound as error:
        refuse(str(error))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    place = logs or Path(__file__).parent / "results" / time.strftime("steady-%Y%m%d-%H%M%S")
    outcomes: list[Outcome] = []
    try:
        for case in chosen:
            with console.status(
                f"{case.name}: {case.starts} starts, {case.quads} quads of {4 * case.block} steps each"
            ):
                outcomes.append(drive(case, place / case.name, limit))
            report = Report(
                machine=facts,
                load_after=round(os.getloadavg()[0], 2),
                comparisons=[o.comparison for o in outcomes],
                profiles={o.comparison.case.name: o.profile for o in outcomes if o.profile},
            )
            (json or place / "steady.json").write_text(report.model_dump_json(indent=1) + "\n")
    except KeyboardInterrupt:
        console.print("interrupted: all processes of the benchmark have been ended", style="bold")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Failed as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILED) from None
    show(outcomes, console)
    after = round(os.getloadavg()[0], 2)
    console.print(
        f"• {facts.processor}, {facts.cores} cores, torch {facts.torch}, elastrain {facts.elastrain} "
        f"({facts.revision}); load average {facts.load} before, {after} after, the benchmark's own load included",
        style="dim", highlight=False, soft_wrap=True,
    )  # fmt: skip


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
