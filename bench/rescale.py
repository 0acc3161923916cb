#!/usr/bin/env python3
"""The cost of a rescale: elastrain beside stock torchrun and torchft, on one machine. ``--help`` explains its use."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_harness.network import LINKS
from bench_harness.processes import Load
from bench_rescale.events import DEFAULT, EVENTS, SCENARIOS, Event, Scenario, sizes
from bench_rescale.growth import FEWEST, leaks
from bench_rescale.report import notes, tables
from bench_rescale.results import Report, RunResult
from bench_rescale.scenario import FOOTPRINTS, Run
from bench_rescale.systems import SYSTEMS, Settings

HELP = """Measure what a training job loses when nodes come, go, die and fall silent.

Each run starts a job on a few nodes of this machine, fires the events of one scenario one after the other, and reads
the log of every training process. Systems take turns, run by run. A run of the default scenario takes about a minute
(elastrain), two minutes (torchrun-tuned, torchft-tuned) or five (torchrun-default). Use a machine that does nothing
else.

\b
Examples:
  bench/rescale.py                                                 the default scenario, three runs: half an hour
  bench/rescale.py --systems elastrain --scenarios all --busy      every scenario, and again beside a load
  bench/rescale.py --systems elastrain --runs 1 --events grow,term a quick look
  bench/rescale.py --systems elastrain --scenarios spare --state-mib 1024    a joiner with a gigabyte of state
  bench/rescale.py --systems elastrain-hsdp,elastrain-one-copy --scenarios join --state-mib 0,1024,4096 \\
    --checkpoint-every 100000        growth of a sharded job by its state; needs four times the state of memory
  bench/rescale.py --systems elastrain --network 100mbit --state-mib 1024    the same on a slow network (root)
  bench/rescale.py --systems elastrain --runs 1 --network 100mbit --scenarios train --train 60    false losses (root)
  bench/rescale.py --systems elastrain --scenarios etcd --etcd-away 600      ten minutes without etcd
  bench/rescale.py --systems elastrain --scenarios cycles --cycles 200       what rescales leave behind
  bench/rescale.py --systems elastrain --scenarios all --device cuda         on GPUs; nodes share them in turn

\b
Figures (exact definitions, and the goals: docs/benchmarks.md):
  stall      longest time between two committed steps of a survivor
  time to size: from the event to the first step at the new size on every member; not the pause of a rescale
  redone     committed steps that the job was rolled back by
  discarded  steps that a survivor began and discarded before they were committed

\b
Systems:
{systems}

\b
Scenarios (a system skips those with events that it has no equivalent of):
{scenarios}

\b
Events:
{events}""".format(
    systems="\n".join(f"  {name:20}{system.about}" for name, system in SYSTEMS.items()),
    scenarios="\n".join(f"  {n:18}{s.about}: {', '.join(s.events)}" for n, s in SCENARIOS.items()),
    events="\n".join(f"  {event.value:18}{about}" for event, about in EVENTS.items()),
)


def choose_scenarios(scenarios: str, events: str | None) -> dict[str, Scenario]:
    """Those of ``--scenarios``, or the one that ``--events`` make up; leaves with a message if that cannot be."""
    if events is None:
        given = ",".join(SCENARIOS) if scenarios.strip() == "all" else scenarios
        return {name: SCENARIOS[name] for name in program.choose("--scenarios", given, [*SCENARIOS, "all"])}
    chosen = tuple(Event(e) for e in program.choose("--events", events, [e.value for e in Event]))
    try:
        sizes(chosen)
    except ValueError as error:
        program.refuse(f"--events {events}: {error}")
    short = bool({Event.SILENT, Event.CYCLES} & set(chosen))
    return {"events": Scenario("as given", chosen, short_lease=short)}


def measure(
    name: str, scenario: Scenario, title: str, settings: Settings, busy: bool, run: tuple[Path, float, int],
    output: program.Output,
) -> RunResult:  # fmt: skip
    """One run of a system. ``run``: its new directory, the limit in seconds, and the number of cycles."""
    directory, limit, cycles = run
    directory.mkdir(parents=True)
    lease = settings.lease_ttl if scenario.short_lease else None
    system = SYSTEMS[name](directory, replace(settings, lease_ttl=lease))
    with Load() if busy else contextlib.nullcontext() as load:
        spare = load.pids if load is not None else ()
        result = Run(system, limit, output, cycles, spare).run(title, scenario)
    return result.model_copy(update={"system": name, "state_mib": settings.state_mib, "busy": busy})


def turns(
    systems: list[str], scenarios: Mapping[str, Scenario], states: list[int], runs: int, busy: bool
) -> list[tuple[bool, int, int, str, str]]:
    """Busy, number of the run, state in MiB, scenario and system of each run: quiet ones first, systems in turns."""
    every = itertools.product((False, True) if busy else (False,), range(1, runs + 1), states, scenarios, systems)
    return [one for one in every if all(SYSTEMS[one[4]].has(event) for event in scenarios[one[3]].events)]


def main(
    *,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = "elastrain,torchrun-default,torchrun-tuned",
    runs: Annotated[int, typer.Option(min=1, help="Of each system; publish no fewer than 3.")] = 3,
    scenarios: Annotated[str, typer.Option(help="One run for each; 'all': every one.")] = DEFAULT,
    events: Annotated[str | None, typer.Option(help="One scenario of these events, instead of --scenarios.")] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Everything once more, beside a load on every core.")] = False,
    cycles: Annotated[int, typer.Option(min=FOOTPRINTS, help="Of 'cycles'; 50 or more resolve memory.")] = 50,
    state_mib: Annotated[
        str, typer.Option(help="Frozen weights below the model, in steps of 64; one run for each.")
    ] = "0",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where elastrain's ranks train.")] = "cpu",
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between durable checkpoints.")] = 20,
    lease_ttl: Annotated[int, typer.Option(min=2, help="Seconds; elastrain's, where a node falls silent.")] = 2,
    etcd_away: Annotated[float, typer.Option(min=0, help="Seconds that etcd is away.")] = 2,
    train: Annotated[float, typer.Option(min=0.1, help="Minutes of undisturbed training of 'train'.")] = 5,
    network: Annotated[
        str | None, typer.Option(help=f"Between elastrain's nodes: {', '.join(LINKS)}. Default: loopback. Needs root.")
    ] = None,
    torchft_python: Annotated[
        Path | None, typer.Option(help="Python of a virtual environment with torchft, for its systems.")
    ] = None,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that an event may take.")] = 180,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    names = program.choose("--systems", systems, list(SYSTEMS))
    chosen = choose_scenarios(scenarios, events)
    cards = program.cards(device)
    [link] = program.choose("--network", network, list(LINKS)) if network else [None]
    states = program.numbers("--state-mib", state_mib, least=0)
    settings = Settings(
        checkpoint_every, lease_ttl, etcd_away, 0, device, cards, torchft_python, LINKS[link] if link else None, train
    )
    for name in names:
        if (lacks := SYSTEMS[name].missing(settings)) is not None:
            program.refuse(lacks)
    facts, done = machine(), list[RunResult]()
    output = program.Output("rescale", json, logs, markdown)

    def report() -> Report:
        return Report(
            machine=facts,
            checkpoint_every=checkpoint_every,
            lease_ttl=lease_ttl,
            limit=limit,
            cycles=cycles,
            runs=tuple(done),
        )

    planned = turns(names, chosen, states, runs, busy)
    with output.measuring():
        for i, (under_load, number, mib, scenario, name) in enumerate(planned, 1):
            beside = (f", {mib} MiB" if mib else "") + (", beside a load" if under_load else "")
            output.begins(f"{i}/{len(planned)}: {name}, {scenario}, run {number} of {runs}{beside}")
            directory = output.logs / f"{name}-{scenario}-{mib}-{number}{'-busy' if under_load else ''}"
            run, of_state = (directory, limit, cycles), replace(settings, state_mib=mib)
            done.append(measure(name, chosen[scenario], scenario, of_state, under_load, run, output))
            output.keep(report())
    output.show(tables(report()), notes(report(), {name: SYSTEMS[name].about for name in names}))
    if any(len(f) >= FEWEST and leaks(f, cycles) for r in done for f in r.footprints.values()):
        raise typer.Exit(program.EXIT_FAILED)


if __name__ == "__main__":
    program.run(main, HELP)
