#!/usr/bin/env python3
"""What a joiner costs where the state is large: given in portions, beside given whole. ``--help`` tells how."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console

from elastrain.cli.shell.terminal import EXIT_INTERRUPTED
from elastrain.etcd.server import EtcdNotFound
from rescale_harness.events import Event, Scenario
from rescale_harness.machine import machine
from rescale_harness.report import (
    Table,
    Terminal,
    conditions,
    events_table,
    markdown_tables,
    phases_table,
    render,
    show_tables,
    systems_table,
)
from rescale_harness.results import Machine, RunResult, SystemResult
from rescale_harness.scenario import Run
from rescale_harness.summary import system_result, with_ratios
from rescale_harness.systems import Elastrain, Settings, System
from rescale_harness.train_large import ENV_FROZEN, ENV_WHOLE

NEVER = 1_000_000
"""Steps between checkpoints: a gigabyte to a disk would be in the steps' times."""
SCENARIO = Scenario("a warm node takes the next place", (Event.GROW_SPARE,))
REFERENCE = "portions"

HELP = """Measure how long training stands still while a joiner gets a large state.

Two ranks train the workload of bench/rescale.py on top of frozen weights, as in fine-tuning: the state has a gigabyte,
and a step is short. Then a warm spare takes the next place. The state travels in portions, over several steps, or
whole, in one; both take turns. Needs about six times the state of memory. About a minute for each run of each.

\b
Examples:
  bench/large_state.py                                           three runs of both
  bench/large_state.py --frozen 4096 --runs 1                    4 GiB, a quick look
  bench/large_state.py --render FILE --into docs/large-states.md the tables of an earlier run, into a page

Figures are those of bench/rescale.py. Exit codes: 0 measured, 2 cannot be started as asked, 130 interrupted.
"""


class InPortions(Elastrain):
    about = "the state in portions, over several steps: what elastrain does from 256 MiB on"
    program = "rescale_harness.train_large"
    frozen: ClassVar[int]

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command, environment = super().node(number)
        return command, environment | {ENV_FROZEN: str(self.frozen)}


class Whole(InPortions):
    about = "the same state whole, in one step"

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command, environment = super().node(number)
        return command, environment | {ENV_WHOLE: "1"}


SYSTEMS: dict[str, type[System]] = {REFERENCE: InPortions, "whole": Whole}


class Report(BaseModel):
    """What ``--json`` writes and ``--render`` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Machine
    began: str
    frozen_mib: int
    systems: dict[str, SystemResult]


def tables(report: Report) -> list[tuple[str, Table]]:
    events = events_table(report.systems)
    header = tuple(words.replace("elastrain", REFERENCE) for words in events.header)
    return [
        ("A warm spare takes the next place", replace(events, header=header)),
        *((f"Where the time went: {name}", phases_table({name: s})) for name, s in report.systems.items()),
        ("Without an event, and what became of the samples", systems_table(report.systems)),
    ]


def notes(report: Report) -> list[str]:
    return [
        f"{report.frozen_mib} MiB of frozen weights and 110 MB of trained ones with Adam; over loopback, one thread "
        "a rank, 32 samples a step.",
        *(f"{name}: {system.about}." for name, system in report.systems.items()),
        conditions(report.machine, report.began),
    ]


def markdown(report: Report) -> str:
    return markdown_tables(tables(report), notes(report))


def main(
    *,
    json: Annotated[Path | None, typer.Option(help="Where every figure is written. Default: LOGS/large.json.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Of each way.")] = 3,
    frozen: Annotated[int, typer.Option(min=256, help="MiB of frozen weights.")] = 1024,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the joiner may take.")] = 180,
    logs: Annotated[Path | None, typer.Option(help="Where runs leave their logs. Default: bench/results/TIME.")] = None,
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if into is not None and render_ is None:
        typer.echo(f"--into {into}: needs --render FILE", err=True)
        raise typer.Exit(2)
    if render_ is not None:
        render(render_, into, Report, markdown)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    facts, began = machine(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    place = logs or Path(__file__).parent / "results" / time.strftime("large-%Y%m%d-%H%M%S")
    InPortions.frozen = frozen
    results: dict[str, list[RunResult]] = {name: [] for name in SYSTEMS}
    try:
        with Terminal(console) as terminal:
            for run in range(1, runs + 1):
                for name, kind in SYSTEMS.items():
                    terminal.begins(f"{name}, run {run} of {runs}")
                    directory = place / f"{name}-{run}"
                    directory.mkdir(parents=True)
                    system = kind(directory, Settings(checkpoint_every=NEVER))
                    results[name].append(Run(system, limit, terminal).run("spare", SCENARIO))
    except EtcdNotFound as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("interrupted: all processes of the benchmark have been ended", style="bold")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    systems = with_ratios({n: system_result(SYSTEMS[n].about, r) for n, r in results.items()}, REFERENCE)
    report = Report(machine=facts, began=began, frozen_mib=frozen, systems=systems)
    (json or place / "large.json").write_text(report.model_dump_json(indent=1) + "\n")
    show_tables(tables(report), notes(report), console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
