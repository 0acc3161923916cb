#!/usr/bin/env python3
"""What a rescale costs: elastrain beside stock torchrun, on one machine. ``--help`` tells how to use it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from elastrain.cli.shell.terminal import EXIT_INTERRUPTED
from elastrain.etcd.server import EtcdNotFound
from rescale_harness.events import DEFAULT, EVENTS, SCENARIOS, Event, Scenario, sizes
from rescale_harness.goals import with_goals
from rescale_harness.load import Load
from rescale_harness.machine import machine
from rescale_harness.report import Terminal, markdown, render, show
from rescale_harness.results import Machine, Report, RunResult, SystemResult
from rescale_harness.scenario import Run
from rescale_harness.summary import system_result, with_ratios
from rescale_harness.systems import SYSTEMS, Settings
from rescale_harness.warm import touch_memory

REFERENCE = "elastrain"
Job = tuple[bool, int, str, str]
"""Busy, number of the run, system, scenario."""
DEFAULT_SYSTEMS = (REFERENCE, "torchrun-default", "torchrun-tuned")

HELP = """Measure what it costs a training job when nodes come, go, die and fall silent.

Each run starts a job on a few nodes of this machine, fires the events of one scenario one after the other, and reads
what every training process has logged at each of its steps. Systems take turns, run by run. A run of the default
scenario takes under a minute (elastrain), one to two minutes (torchrun-tuned, torchft-tuned) or five
(torchrun-default); all scenarios of elastrain together take about five. Use a machine that does nothing else.

\b
Examples:
  bench/rescale.py                                                  the default scenario, three runs: half an hour
  bench/rescale.py --scenarios all --systems elastrain --busy       every scenario, and again beside a load
  bench/rescale.py --systems elastrain --runs 1 --events grow,term  a quick look
  bench/rescale.py --json rescale.json --add --scenarios silent     further runs, into an earlier report
  bench/rescale.py --render rescale.json                            the tables as Markdown; nothing is run
  bench/rescale.py --render rescale.json --into docs/benchmarks.md  ... written between that page's markers

\b
Figures, as min / median / max over the runs (exact definitions, and the goals: docs/benchmarks.md):
  stall      longest time between two committed steps of a survivor
  pause      from the event to the first step at the new size on every member
  changes    how often the world size changed
  redone     committed steps that the job was rolled back by
  discarded  steps that a survivor began and threw away before they were committed

\b
Systems:
{systems}

\b
Scenarios (a system skips those with events that it has no equivalent of):
{scenarios}

\b
Events:
{events}

Exit codes: 0 measured (a system may have failed to recover, a goal may have been missed: the tables say so), 2 cannot
be started as asked, 130 interrupted (what had been measured is in the JSON file).
""".format(
    systems="\n".join(f"  {name:18}{system.about}" for name, system in SYSTEMS.items()),
    scenarios="\n".join(f"  {n:18}{s.about}: {', '.join(s.events)}" for n, s in SCENARIOS.items()),
    events="\n".join(f"  {event.value:24}{about}" for event, about in EVENTS.items()),
)


class Benchmark:
    """All runs of all systems, and the report on those that are over."""

    def __init__(
        self,
        systems: Sequence[str],
        scenarios: Mapping[str, Scenario],
        settings: Settings,
        limit: float,
        earlier: Report | None = None,
    ) -> None:
        """``earlier``: its runs count, too. Raises ``EtcdNotFound``, and ``ValueError`` if they cannot."""
        self._systems = systems
        self._scenarios = scenarios
        self._settings = settings
        self._limit = limit
        self._machine = machine()
        self._began, self._clock = datetime.now(UTC), time.monotonic()
        self._results: dict[tuple[bool, str], list[RunResult]] = {}
        self._earlier = earlier
        if earlier is not None:
            self._go_on_from(earlier)

    def _go_on_from(self, earlier: Report) -> None:
        same_conditions(earlier, self._machine, self._settings, self._limit)
        revisions = dict.fromkeys((*earlier.machine.revision.split(", "), self._machine.revision))
        self._machine = earlier.machine.model_copy(update={"revision": ", ".join(revisions)})
        self._systems = list(dict.fromkeys((*earlier.systems, *earlier.busy, *self._systems)))
        for busy, systems in ((False, earlier.systems), (True, earlier.busy)):
            for name, result in systems.items():
                self._results[busy, name] = list(result.runs)

    def measure(self, name: str, scenario: str, directory: Path, terminal: Terminal, busy: bool) -> None:
        """One run of a system, with its logs in a new ``directory``; ``busy``: beside a load."""
        directory.mkdir(parents=True)
        touch_memory(terminal.waiting)
        chosen = self._scenarios[scenario]
        ttl = self._settings.lease_ttl if chosen.short_lease else None
        system = SYSTEMS[name](directory, replace(self._settings, lease_ttl=ttl))
        with Load() if busy else contextlib.nullcontext() as load:
            spare = load.pids if load is not None else ()
            result = Run(system, self._limit, terminal, spare).run(scenario, chosen)
        self._results.setdefault((busy, name), []).append(result)

    def report(self) -> Report:
        earlier = self._earlier
        ttl = self._settings.lease_ttl if any(s.short_lease for s in self._scenarios.values()) else None
        events = (e.value for s in self._scenarios.values() for e in s.events)
        return Report(
            machine=self._machine,
            began=earlier.began if earlier else self._began.strftime("%Y-%m-%d %H:%M UTC"),
            seconds=round(time.monotonic() - self._clock + (earlier.seconds if earlier else 0), 1),
            events=tuple(dict.fromkeys((*(earlier.events if earlier else ()), *events))),
            checkpoint_every=self._settings.checkpoint_every,
            limit=self._limit,
            systems=self._summaries(busy=False),
            scenarios=tuple(dict.fromkeys((*(earlier.scenarios if earlier else ()), *self._scenarios))),
            lease_ttl=ttl or (earlier.lease_ttl if earlier else None),
            busy=self._summaries(busy=True),
            load_after=round(os.getloadavg()[0], 2),
        )

    def _summaries(self, *, busy: bool) -> dict[str, SystemResult]:
        found = {n: system_result(SYSTEMS[n].about, r) for n in self._systems if (r := self._results.get((busy, n)))}
        if REFERENCE in found:
            found[REFERENCE] = with_goals(found[REFERENCE], float(self._settings.lease_ttl or 0))
        return with_ratios(found, REFERENCE)


def same_conditions(earlier: Report, here: Machine, settings: Settings, limit: float) -> None:
    """Raises ``ValueError`` if runs made here and now do not belong beside those of ``earlier``."""
    told = {"load": 0.0, "revision": ""}  # both are in the report, and may differ
    if earlier.machine.model_copy(update=told) != here.model_copy(update=told):
        raise ValueError(f"it was measured on another machine or with other versions: {earlier.machine}")
    ttl = earlier.lease_ttl or settings.lease_ttl
    if (earlier.checkpoint_every, earlier.limit, ttl) != (settings.checkpoint_every, limit, settings.lease_ttl):
        raise ValueError(
            f"it was measured with --checkpoint-every {earlier.checkpoint_every} --limit {earlier.limit:g}"
            f" --lease-ttl {ttl}"
        )


def plan(systems: Sequence[str], scenarios: Mapping[str, Scenario], runs: int, busy: bool) -> list[Job]:
    """What is run, in order: quiet before busy, run by run, systems in turns; what a system cannot do is left out."""
    return [
        (under_load, run, name, scenario)
        for under_load in ((False, True) if busy else (False,))
        for run in range(1, runs + 1)
        for scenario in scenarios
        for name in systems
        if all(SYSTEMS[name].has(event) for event in scenarios[scenario].events)
    ]


def choose_scenarios(scenarios: str, events: str | None) -> dict[str, Scenario]:
    """Those of ``--scenarios``, or the one that ``--events`` make up; leaves with a message if that cannot be."""
    if events is None:
        given = ",".join(SCENARIOS) if scenarios.strip() == "all" else scenarios
        return {name: SCENARIOS[name] for name in choose("--scenarios", given, [*SCENARIOS, "all"])}
    chosen = tuple(Event(e) for e in choose("--events", events, [e.value for e in Event]))
    try:
        sizes(chosen)
    except ValueError as error:
        refuse(f"--events {events}: {error}")
    return {"events": Scenario("as given", chosen, short_lease=Event.SILENT in chosen)}


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


def main(
    *,
    json: Annotated[
        Path | None,
        typer.Option(help="Where every figure of every run is written. Default: LOGS/rescale.json."),
    ] = None,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(DEFAULT_SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each system; publish no fewer than 3.")] = 3,
    scenarios: Annotated[str, typer.Option(help="What happens, a run for each; 'all': every one.")] = DEFAULT,
    events: Annotated[str | None, typer.Option(help="One scenario of these events, instead of --scenarios.")] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Everything once more, beside a load on every core.")] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between durable checkpoints.")] = 20,
    lease_ttl: Annotated[int, typer.Option(min=2, help="Seconds; elastrain's, where a node falls silent.")] = 2,
    torchft_python: Annotated[
        Path | None, typer.Option(help="Python of a virtual environment with torchft, for torchft-tuned.")
    ] = None,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that an event may take to be recovered from.")] = 180,
    logs: Annotated[Path | None, typer.Option(help="Where runs leave their logs. Default: bench/results/TIME.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add to the runs that the file of --json has already.")] = False,
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if into is not None and render_ is None:
        refuse(f"--into {into}: needs --render FILE")
    if render_ is not None:
        render(render_, into, Report, markdown)
        return
    names = choose("--systems", systems, list(SYSTEMS))
    chosen = choose_scenarios(scenarios, events)
    settings = Settings(checkpoint_every, lease_ttl, torchft_python)
    for name in names:
        if (lacks := SYSTEMS[name].missing(settings)) is not None:
            refuse(lacks)
    if add and json is None:
        refuse("--add: needs --json FILE, with the runs to add to")
    try:
        earlier = Report.model_validate_json(json.read_bytes()) if add and json else None
        benchmark = Benchmark(names, chosen, settings, limit, earlier)
    except EtcdNotFound as error:
        refuse(str(error))
    except (OSError, ValueError) as error:  # pydantic's are among them
        refuse(f"--add {json}: {error}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    place = logs or Path(__file__).parent / "results" / time.strftime("%Y%m%d-%H%M%S")
    report = json or place / "rescale.json"
    console.print(f"logs: {place}, figures: {report}", highlight=False, soft_wrap=True)
    try:
        with Terminal(console) as terminal:
            jobs = plan(names, chosen, runs, busy)
            for i, (under_load, run, name, scenario) in enumerate(jobs, 1):
                beside = ", beside a load" if under_load else ""
                terminal.begins(f"{i}/{len(jobs)}: {name}, {scenario}, run {run} of {runs}{beside}")
                directory = place / f"{name}-{scenario}-{run}{'-busy' if under_load else ''}"
                benchmark.measure(name, scenario, directory, terminal, under_load)
                report.write_text(benchmark.report().model_dump_json(indent=1) + "\n")
    except KeyboardInterrupt:
        console.print("interrupted: all processes of the benchmark have been ended", style="bold")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(benchmark.report(), console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
