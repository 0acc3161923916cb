#!/usr/bin/env python3
"""What rescales leave behind in the processes that live through them. ``--help`` tells how to use it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel, ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from leaks_harness.analysis import COUNT_A_CYCLE, KIB_A_CYCLE, Growth, Sample, growth
from leaks_harness.cycles import KINDS, series
from leaks_harness.leader import Stuck

EXIT_LEAK = 1
HELP = f"""Show that rescales leave nothing behind: no thread, no file descriptor, no memory.

Three real ranks train; this program plays their agents and the leader, so that a cycle takes a fraction of a second.
After every few cycles it looks at each rank from outside. The slope of each series is the median one over all pairs of
looks after the first fifth of the cycles (Theil and Sen).

\b
Kinds of cycle:
  planned  shrink from 3 ranks to 2 and grow back; the third stands aside meanwhile
  blocked  the third rank is stopped (SIGSTOP), so that the others block in a collective; that is broken off, they go
           on as 2, it is woken and comes back

A leak is growth by more than {COUNT_A_CYCLE:g} threads or file descriptors a cycle, or {KIB_A_CYCLE:g} KiB of
memory.

Exit codes: 0 nothing leaks, 1 something does, or a cycle did not end, 2 cannot be started as asked.
"""


class Report(BaseModel):
    """What ``--json`` writes."""

    model_config = ConfigDict(frozen=True)

    cycles: int
    seconds: dict[str, float]
    """Kind -> all its cycles together."""
    samples: dict[str, dict[str, list[Sample]]]
    """Kind -> rank -> its series."""
    growth: dict[str, dict[str, Growth]]


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def show(report: Report, console: Console) -> None:
    for kind, ranks in report.samples.items():
        cycles = [str(s.cycle) for s in next(iter(ranks.values()))]
        seconds = report.seconds[kind]
        title = f"{kind}: {report.cycles} cycles in {seconds:.0f} s, looks and start included"
        table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("rank", "after cycle", *cycles, "a cycle", "leaks"):
            table.add_column(name, justify="left" if name in ("rank", "after cycle", "leaks") else "right")
        for rank, samples in ranks.items():
            grown = report.growth[kind][rank]
            held = [s.footprint for s in samples]
            rows = (
                ("threads", [str(f.threads) for f in held], f"{grown.threads:+.2f}", "threads"),
                ("file descriptors", [str(f.fds) for f in held], f"{grown.fds:+.2f}", "fds"),
                ("memory MiB", [f"{f.private_kib / 1024:.1f}" for f in held], f"{grown.kib:+.1f} KiB", "memory"),
            )
            for name, figures, slope, what in rows:
                table.add_row(rank, name, *figures, slope, "YES" if what in grown.leaks else "no")
        console.width = max(console.width, 150)
        console.print(table)


def main(
    *,
    cycles: Annotated[int, typer.Option(min=10, help="Of each kind; fewer are not resolved.")] = 200,
    kinds: Annotated[str, typer.Option(help="Which.")] = ",".join(KINDS),
    json: Annotated[Path | None, typer.Option(help="Where every look is written. Default: LOGS/leaks.json.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Default: bench/results/leaks-TIME.")] = None,
) -> None:
    chosen = [kind.strip() for kind in kinds.split(",")]
    for kind in chosen:
        if kind not in KINDS:
            refuse(f"--kinds: {kind!r} must be one of {', '.join(KINDS)}")
    place = logs or Path(__file__).parent / "results" / time.strftime("leaks-%Y%m%d-%H%M%S")
    console = Console()
    samples: dict[str, dict[str, list[Sample]]] = {}
    seconds: dict[str, float] = {}
    stuck: list[str] = []
    for kind in chosen:
        began = time.monotonic()
        with console.status(kind) as status:

            def told(done: int, kind: str = kind, status: object = status) -> None:
                status.update(f"{kind}: {done} of {cycles} cycles")  # type: ignore[attr-defined]

            try:
                samples[kind] = series(kind, cycles, place / kind, told)
            except Stuck as error:
                typer.echo(f"{kind}: {error}", err=True)
                stuck.append(kind)
        seconds[kind] = round(time.monotonic() - began, 1)
    grown = {kind: {rank: growth(s) for rank, s in ranks.items()} for kind, ranks in samples.items()}
    report = Report(cycles=cycles, seconds=seconds, samples=samples, growth=grown)
    (json or place / "leaks.json").write_text(report.model_dump_json(indent=1) + "\n")
    show(report, console)
    if stuck or any(g.leaks for ranks in grown.values() for g in ranks.values()):
        raise typer.Exit(EXIT_LEAK)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
