#!/usr/bin/env python3
"""What a rescale costs: elastrain beside stock torchrun, on one machine. ``--help`` tells how to use it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from elastrain.local.etcd_server import EtcdNotFound
from rescale_harness.analysis import system_result, with_ratios
from rescale_harness.machine import machine
from rescale_harness.report import Terminal, between_markers, markdown, show
from rescale_harness.results import Report, RunResult
from rescale_harness.scenario import DEFAULT_EVENTS, EVENTS, Event, Run, sizes
from rescale_harness.systems import SYSTEMS

REFERENCE = "elastrain"
DEFAULT_SYSTEMS = (REFERENCE, "torchrun-default", "torchrun-tuned")
EXIT_INTERRUPTED = 130

HELP = """Measure what it costs a training job when nodes come and go.

Each run starts a job on two nodes of this machine, fires the events one after the other, and reads what every training
process has logged at each of its steps. Systems take turns, run by run. A run takes under a minute (elastrain), one to
two minutes (torchrun-tuned) or five (torchrun-default). Use a machine that does nothing else.

\b
Examples:
  bench/rescale.py                                                  everything, three runs each: half an hour
  bench/rescale.py --systems elastrain --runs 1 --events grow,term  a quick look
  bench/rescale.py --render rescale.json                            the tables as Markdown; nothing is run
  bench/rescale.py --render rescale.json --into docs/benchmarks.md  ... written between that page's markers

\b
Figures, as min / median / max over the runs (exact definitions: docs/benchmarks.md):
  stall      longest time between two committed steps of a survivor
  pause      from the event to the first step at the new size on every member
  redone     committed steps that the job was rolled back by
  discarded  steps that a survivor began and threw away before they were committed

\b
Systems:
{systems}

\b
Events:
{events}

Exit codes: 0 measured (a system may have failed to recover: the table says so), 2 cannot be started as asked, 130
interrupted (what had been measured is in the JSON file).
""".format(
    systems="\n".join(f"  {name:18}{system.about}" for name, system in SYSTEMS.items()),
    events="\n".join(f"  {event.value:18}{about}" for event, about in EVENTS.items()),
)


class Benchmark:
    """All runs of all systems, and the report on those that are over."""

    def __init__(self, systems: Sequence[str], events: Sequence[Event], checkpoint_every: int, limit: float) -> None:
        """Raises ``EtcdNotFound``."""
        self._systems = systems
        self._events = events
        self._checkpoint_every = checkpoint_every
        self._limit = limit
        self._machine = machine()
        self._began, self._clock = datetime.now(UTC), time.monotonic()
        self._results: dict[str, list[RunResult]] = {}

    def measure(self, name: str, directory: Path, terminal: Terminal) -> None:
        """One run of a system, with its logs in a new ``directory``."""
        directory.mkdir(parents=True)
        system = SYSTEMS[name](directory, self._checkpoint_every)
        result = Run(system, self._limit, terminal).run(self._events)
        self._results.setdefault(name, []).append(result)

    def report(self) -> Report:
        results = {n: system_result(SYSTEMS[n].about, r) for n in self._systems if (r := self._results.get(n))}
        return Report(
            machine=self._machine,
            began=self._began.strftime("%Y-%m-%d %H:%M UTC"),
            seconds=round(time.monotonic() - self._clock, 1),
            events=tuple(e.value for e in self._events),
            checkpoint_every=self._checkpoint_every,
            limit=self._limit,
            systems=with_ratios(results, REFERENCE),
        )


def choose(option: str, given: str, known: Sequence[str]) -> list[str]:
    """The comma-separated words of ``given``; leaves with a message that names the one that is not known."""
    words = [word.strip() for word in given.split(",")]
    for word in words:
        if word not in known:
            refuse(f"{option}: {word!r} must be one of {', '.join(known)}")
    return words


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def render(source: Path, into: Path | None) -> None:
    """The tables of an earlier report as Markdown, printed or written into a page."""
    try:
        text = markdown(Report.model_validate_json(source.read_bytes()))
        if into is None:
            typer.echo(text)
        else:
            into.write_text(between_markers(into.read_text(), text))
    except ValidationError as error:
        refuse(f"--render {source}: not a report of this benchmark: {error}")
    except (OSError, ValueError) as error:
        refuse(f"--render {source}: {error}")


def interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(
    *,
    json: Annotated[
        Path | None,
        typer.Option(help="Where every figure of every run is written. Default: LOGS/rescale.json."),
    ] = None,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(DEFAULT_SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each system; publish no fewer than 3.")] = 3,
    events: Annotated[str, typer.Option(help="What happens, in this order.")] = ",".join(DEFAULT_EVENTS),
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between durable checkpoints.")] = 20,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that an event may take to be recovered from.")] = 180,
    logs: Annotated[Path | None, typer.Option(help="Where runs leave their logs. Default: bench/results/TIME.")] = None,
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if into is not None and render_ is None:
        refuse(f"--into {into}: needs --render FILE")
    if render_ is not None:
        render(render_, into)
        return
    names = choose("--systems", systems, list(SYSTEMS))
    chosen = [Event(e) for e in choose("--events", events, [e.value for e in Event])]
    try:
        sizes(chosen)
        benchmark = Benchmark(names, chosen, checkpoint_every, limit)
    except (ValueError, EtcdNotFound) as error:
        refuse(f"--events {events}: {error}" if isinstance(error, ValueError) else str(error))
    signal.signal(signal.SIGTERM, interrupt)
    console = Console()
    place = logs or Path(__file__).parent / "results" / time.strftime("%Y%m%d-%H%M%S")
    report = json or place / "rescale.json"
    console.print(f"logs: {place}, figures: {report}", highlight=False, soft_wrap=True)
    try:
        with Terminal(console) as terminal:
            for run in range(1, runs + 1):
                for name in names:
                    terminal.begins(f"{name}, run {run} of {runs}")
                    benchmark.measure(name, place / f"{name}-{run}", terminal)
                    report.write_text(benchmark.report().model_dump_json(indent=1) + "\n")
    except KeyboardInterrupt:
        console.print("interrupted: all processes of the benchmark have been ended", style="bold")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(benchmark.report(), console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
