"""The figures for people: on a terminal, and as Markdown for the documentation. Pure but for printing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from rescale_harness.results import EventResult, EventSummary, Machine, Report, Spread, SystemResult

R = TypeVar("R", bound=BaseModel)

FEWEST_RUNS = 3
WORKLOAD = (
    "Workload: a perceptron of 9.2 million parameters with Adam (110 MB of state), one rank a node, one thread a rank, "
    "over loopback. 16 samples a rank at 2 ranks; at 3 ranks elastrain still takes 32 samples a step, since its "
    "global batch is constant, and the others take 48"
)
WIDTH = 150
"""Columns that the table of events takes; a narrower terminal breaks its lines."""
MARKERS = ("<!-- figures: begin -->", "<!-- figures: end -->")


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows. The first ``left`` columns are words, the others figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def tables(report: Report) -> list[tuple[str, Table]]:
    """All tables that have a row, each with a title."""
    found = [
        ("What each event cost", events_table(report.systems)),
        ("Goals", goals_table(report.systems)),
        ("The same beside a load on every core", events_table(report.busy)),
        ("Goals beside a load on every core", goals_table(report.busy)),
        ("Where the time went, by elastrain's own account", phases_table(report.systems)),
        ("The same beside a load on every core", phases_table(report.busy)),
        ("Undisturbed steps", undisturbed_table(report)),
        ("Systems", systems_table(report.systems)),
        ("Systems beside a load on every core", systems_table(report.busy)),
    ]
    return [(title, table) for title, table in found if table.rows]


def events_table(systems: Mapping[str, SystemResult]) -> Table:
    """What each event cost, system by system."""
    header = (
        "event", "system", "recovered", "stall s", "× elastrain", "pause s", "× elastrain",
        "changes", "redone", "discarded", "new pids",
    )  # fmt: skip
    order = list(dict.fromkeys(e.label for s in systems.values() for e in s.events))
    rows = [
        _event_row(label, name, event)
        for label in order
        for name, system in systems.items()
        for event in system.events
        if event.label == label
    ]
    return Table(header, tuple(rows), left=2)


def goals_table(systems: Mapping[str, SystemResult]) -> Table:
    """Which bounds were kept."""
    header = ("event", "goal", "is at most", "median", "max", "kept")
    rows = []
    for event in (e for s in systems.values() for e in s.events):
        for goal in event.goals:
            spread: Spread | None = getattr(event, goal.figure)
            figures = ("–", "–") if spread is None else (f"{spread.median:.2f}", f"{spread.max:.2f}")
            if goal.figure == "changes" and spread is not None:
                figures = (f"{spread.median:g}", f"{spread.max:g}")
            kept = "yes" if goal.met_by_all else "by the median" if goal.met_by_median else "no"
            bound = f"{goal.bound:g}" if goal.figure == "changes" else f"{goal.bound:.2f}"
            rows.append((_event_name(event), f"{goal.figure} ≤ {goal.words}", bound, *figures, kept))
    return Table(header, tuple(rows), left=2)


def phases_table(systems: Mapping[str, SystemResult]) -> Table:
    """Medians of the phases of each rescale, in milliseconds."""
    rows = [
        (_event_name(event), rescale.name, f"{1000 * rescale.pause:.0f}", _phases(rescale.seconds))
        for system in systems.values()
        for event in system.events
        for rescale in event.phases
    ]
    return Table(("event", "rescale", "pause ms", "phases ms"), tuple(rows), left=2)


def _phases(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1000 * value:.0f}" for name, value in seconds.items())


def undisturbed_table(report: Report) -> Table:
    """Steps between the events, by world size."""
    rows = [
        (
            name + (", beside a load" if busy else ""), str(u.size), str(u.steps),
            *(f"{1000 * value:.0f}" for value in (u.median, u.p95, u.longest)),
        )
        for busy, systems in ((False, report.systems), (True, report.busy))
        for name, system in systems.items()
        for u in system.undisturbed
    ]  # fmt: skip
    return Table(("system", "ranks", "steps", "median ms", "95 % ms", "longest ms"), tuple(rows))


def _event_name(event: EventSummary) -> str:
    return f"{event.label} {event.from_size}→{event.to_size}"


def _event_row(label: str, system: str, event: EventSummary) -> tuple[str, ...]:
    lost = event.recovered < event.runs
    return (
        _event_name(event),
        system,
        f"{event.recovered} of {event.runs}",
        (">" if lost else "") + seconds(event.stall),
        ratio(event.stall_ratio),
        seconds(event.pause),
        ratio(event.pause_ratio),
        "–" if event.changes is None else count(event.changes),
        count(event.redone),
        count(event.discarded),
        f"{event.pids_changed} of {event.runs}",
    )


def systems_table(systems: Mapping[str, SystemResult]) -> Table:
    """What each system is like without an event, and what became of the samples over all runs."""
    header = ("system", "runs", "start s", "step ms", "longest ms", "samples", "lost", "repeated", "rolled back")
    return Table(header, tuple(_system_row(name, system) for name, system in systems.items()))


def _system_row(name: str, system: SystemResult) -> tuple[str, ...]:
    return (
        name,
        str(len(system.runs)),
        seconds(system.start),
        milliseconds(system.step),
        milliseconds(system.longest_step),
        f"{system.samples_committed:,}",
        str(system.samples_lost),
        str(system.samples_repeated),
        "–" if system.rolled_back is None else f"{system.rolled_back.median:.0%}",
    )


def notes(report: Report) -> list[str]:
    """What a reader must know to judge the figures."""
    m = report.machine
    few = min((len(s.runs) for s in report.systems.values()), default=0) < FEWEST_RUNS
    quiet = m.load <= 0.25 * m.cores
    return [
        *([f"Fewer than {FEWEST_RUNS} runs of a system: not for publication."] if few else []),
        *([f"The load average was {m.load} when it began: the machine was not quiet."] if not quiet else []),
        f"{m.processor}, {m.cores} cores, {m.memory_gib} GiB, {m.system}; Python {m.python}, torch {m.torch}, "
        f"etcd {m.etcd}, elastrain {m.elastrain} ({m.revision or 'not from a checkout'}); load average {m.load} before"
        + ("" if report.load_after is None else f" and {report.load_after} after, the benchmark's own load included")
        + f"; {report.began}, {report.seconds / 60:.0f} minutes.",
        "Three figures are min / median / max over the runs; ratios are of medians.",
        *(f"{name}: {system.about}." for name, system in report.systems.items()),
        f"{WORKLOAD}; a durable checkpoint every {report.checkpoint_every} steps. An event has {report.limit:g} s to "
        "be recovered from.",
        *([] if report.lease_ttl is None else [f"Lease TTL {report.lease_ttl:g} s where a node falls silent."]),
        *(f"{name}: {p}" for part in (report.systems, report.busy) for name, s in part.items() for p in s.problems),
    ]


def conditions(m: Machine, began: str) -> str:
    """When and where it was measured, with what, in a sentence."""
    return (
        f"{began}; {m.cores} cores of {m.processor}, load {m.load:g} before it began; torch {m.torch}, "
        f"elastrain {m.revision or m.elastrain}."
    )


# ---- figures -------------------------------------------------------------------------------------------------------
def seconds(spread: Spread | None) -> str:
    """``0.21 / 0.24 / 0.31``; fewer digits for long times."""
    return "–" if spread is None else _three(spread, ".1f" if spread.min >= 10 else ".2f")


def milliseconds(spread: Spread | None) -> str:
    """``141 / 144 / 150`` of seconds."""
    if spread is None:
        return "–"
    return _three(Spread(min=spread.min * 1000, median=spread.median * 1000, max=spread.max * 1000), ".0f")


def count(spread: Spread) -> str:
    """``10 / 11 / 13``."""
    return _three(spread, "g")


def _three(spread: Spread, form: str) -> str:
    """Once where all runs agree."""
    values = [format(v, form) for v in (spread.min, spread.median, spread.max)]
    return values[0] if spread.min == spread.max else " / ".join(values)


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


# ---- shown ---------------------------------------------------------------------------------------------------------
def show(report: Report, console: Console) -> None:
    """Tables and notes on a terminal."""
    show_tables(tables(report), notes(report), console)


def markdown(report: Report) -> str:
    """The same, for the documentation."""
    return markdown_tables(tables(report), notes(report))


def show_tables(titled: Sequence[tuple[str, Table]], remarks: Sequence[str], console: Console) -> None:
    console.width = max(console.width, WIDTH)
    for title, table in titled:
        console.print(title, style="bold")
        rich = RichTable(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for i, name in enumerate(table.header):
            rich.add_column(name, justify="left" if i < table.left else "right", no_wrap=True)
        for row, following in zip(table.rows, (*table.rows[1:], ("",)), strict=True):
            rich.add_row(*row, end_section=row[0] != following[0] and table.left > 1)
        console.print(rich)
    for remark in remarks:
        console.print(f"• {remark}", style="dim", highlight=False, soft_wrap=True)


def markdown_tables(titled: Sequence[tuple[str, Table]], remarks: Sequence[str]) -> str:
    parts = [f"**{title}**\n\n{markdown_table(table)}" for title, table in titled]
    return "\n\n".join([*parts, "\n".join(f"- {remark}" for remark in remarks)]) + "\n"


def markdown_table(table: Table) -> str:
    """Without a title."""
    rule = ["---" if i < table.left else "---:" for i in range(len(table.header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (table.header, rule, *table.rows))


def between_markers(page: str, figures: str) -> str:
    """``page`` with what lies between its :data:`MARKERS` replaced. Raises ``ValueError`` if it has none."""
    begin, end = MARKERS
    if not re.search(f"{re.escape(begin)}.*{re.escape(end)}", page, re.DOTALL):
        raise ValueError(f"no place for the figures: the page must have the lines {begin!r} and {end!r}")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{figures}\n{end}{rest.partition(end)[2]}"


def render(source: Path, into: Path | None, kind: type[R], markdown: Callable[[R], str]) -> None:
    """What ``--render`` does: an earlier report, of type ``kind``, printed as Markdown or written into a page.

    Ends the program with 2 and a message if one of the two files cannot be used.
    """
    try:
        text = markdown(kind.model_validate_json(source.read_bytes()))
        if into is None:
            typer.echo(text)
        else:
            into.write_text(between_markers(into.read_text(), text))
    except ValidationError as error:
        typer.echo(f"--render {source}: not a report of this benchmark: {error}", err=True)
    except (OSError, ValueError) as error:
        typer.echo(f"--render {source}: {error}", err=True)
    else:
        return
    raise typer.Exit(2)


class Terminal:
    """How the benchmark goes, while it goes. A context manager, and a ``scenario.Watcher``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._run = ""
        self._status = console.status("starting")

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begins(self, run: str) -> None:
        """``run``: which one, in words."""
        self._run = run
        self._console.print(run, style="bold", highlight=False)

    def waiting(self, what: str) -> None:
        self._status.update(f"{self._run}: waiting for {what}")

    def over(self, event: EventResult) -> None:
        size = f"{event.label} {event.from_size}→{event.to_size}"
        how = "" if event.pause is None else f", pause {event.pause:.2f} s"
        end = f"stall {event.stall:.2f} s{how}, {event.redone} redone, {event.discarded} discarded"
        end += ", survivors' pids changed" if event.pids_changed else ""
        failed = "" if event.recovered else "NOT RECOVERED; "
        self._console.print(f"  {size:16} {failed}{end}", highlight=False)
