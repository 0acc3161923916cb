#!/usr/bin/env python3
"""What the operator costs with thousands of jobs. ``--help`` tells how to use it.

(Not ``operator.py``: beside a running script, that name would hide the standard library's module.)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from elastrain.cli.shell.terminal import EXIT_INTERRUPTED
from elastrain.etcd.server import EtcdNotFound
from operator_harness.cluster import BUILD, Failed, missing, version
from operator_harness.net import Refused
from operator_harness.report import markdown, show
from operator_harness.results import Report, Run
from operator_harness.scenario import Settings, measure
from operator_harness.systems import MAX_WORKERS, SYSTEMS
from rescale_harness.machine import machine
from rescale_harness.report import between_markers

WIDTH = 170

HELP = """Measure what it costs the operator, and the API server, to run thousands of jobs.

Each run starts a control plane of its own on loopback (etcd, API server, controllers, scheduler; kwok plays nodes and
pods), creates all jobs with one `kubectl create`, waits until all pods run, and deletes them with one `kubectl delete`.
elastrain's jobs are also scaled by one worker each, left alone for a minute, and see their operator restart. Systems
take turns, size by size. 1,000 jobs take about two minutes for each system, 3,000 about eight. Use a machine that does
nothing else; processor seconds and counts bear other work, seconds do not.

\b
Examples:
  bench/operator_scale.py                                       all sizes: half an hour
  bench/operator_scale.py --jobs 100 --idle 10                  a quick look
  bench/operator_scale.py --jobs 1000 --runs 3 --idle 0         creation and deletion only, three times
  bench/operator_scale.py --jobs 300 --systems elastrain --profile    where the operator's time goes
  bench/operator_scale.py --render FILE --into docs/operator-scale.md the tables of an earlier run, into a page

\b
Systems:
{systems}

\b
Figures:
  create → all Running   from the start of kubectl until the last pod runs
  CPU, RSS               of the system's own process: the operator, or the controller manager
  its API requests       what that process asked of the API server, by its audit log
  spec change → pod      from just before the change was sent until the API server had created the pod

Needs `{build}` (once), and an etcd.

Exit codes: 0 measured (a goal may have been missed: the table says so), 1 something did not come about within its
limit, 2 cannot be started as asked, 130 interrupted.
""".format(systems="\n".join(f"  {name:12}{system.about}" for name, system in SYSTEMS.items()), build=BUILD)


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def choose_systems(given: str) -> list[str]:
    """The comma-separated names of ``given``; leaves with a message that names the one that is not known."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if word not in SYSTEMS:
            refuse(f"--systems: {word!r} must be one of {', '.join(SYSTEMS)}")
    return words


def choose_sizes(given: str, settings: Settings) -> list[int]:
    """The comma-separated numbers of jobs of ``given``; leaves with a message if they cannot be run."""
    try:
        sizes = [int(word) for word in given.split(",") if word.strip()]
    except ValueError:
        refuse(f"--jobs {given!r}: must be numbers, separated by commas")
    most = settings.nodes * 32 // (settings.workers + 2)
    if not sizes or min(sizes) < 1 or max(sizes) > most:
        refuse(f"--jobs {given!r}: each must be from 1 to {most:,}: {settings.nodes} nodes have 32 GPUs each")
    return sizes


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


def run_all(
    turns: Sequence[tuple[int, int, str]], settings: Settings, place: Path, report_path: Path, console: Console
) -> Report:
    """Every turn (size, number of the run, system), with a report after each. Raises what a run raises."""
    began, where = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), machine()
    done: list[Run] = []
    for size, number, system in turns:
        title = f"{system}, {size} jobs, run {number}"
        console.print(title, style="bold", highlight=False)

        def say(words: str) -> None:
            console.print(f"  {time.strftime('%H:%M:%S')} {words}", style="dim", highlight=False)

        done.append(measure(system, size, settings, place / f"{system}-{size}-{number}", say))
        report = Report(
            machine=where,
            kubernetes=version("kube-apiserver"),
            kwok=version("kwok"),
            nodes=settings.nodes,
            began=began,
            load_after=round(os.getloadavg()[0], 2),
            runs=tuple(done),
        )
        report_path.write_text(report.model_dump_json(indent=1) + "\n")
    return report


def main(
    *,
    jobs: Annotated[str, typer.Option(help="Sizes, separated by commas.")] = "100,1000,3000",
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS - 2, help="Pods of a job, one GPU each.")] = 4,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each size and system.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that kwok plays, 32 GPUs each.")] = 600,
    idle: Annotated[float, typer.Option(min=0, help="Seconds left alone; 0: no idling, no restart.")] = 60,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that one phase may take.")] = 1200,
    json: Annotated[Path | None, typer.Option(help="Where all figures are written. Default: LOGS/scale.json.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Where runs leave their logs. Default: bench/results/TIME.")] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Run the operator under cProfile: LOGS/*/operator-1.prof; no real figures."),
    ] = False,
    render_: Annotated[Path | None, typer.Option("--render", help="Run nothing; print this report.")] = None,
    into: Annotated[Path | None, typer.Option(help="With --render: write into this page.")] = None,
) -> None:
    if into is not None and render_ is None:
        refuse(f"--into {into}: needs --render FILE")
    if render_ is not None:
        render(render_, into)
        return
    settings = Settings(nodes, workers, idle, limit, profile)
    names, sizes = choose_systems(systems), choose_sizes(jobs, settings)
    if (lacks := missing()) is not None:
        refuse(lacks)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    place = logs or Path(__file__).parent / "results" / time.strftime("%Y%m%d-%H%M%S")
    report_path = json or place / "scale.json"
    place.mkdir(parents=True, exist_ok=True)
    console.print(f"logs: {place}, figures: {report_path}", highlight=False, soft_wrap=True)
    turns = [(size, number, name) for size in sizes for number in range(1, runs + 1) for name in names]
    try:
        report = run_all(turns, settings, place, report_path, console)
    except EtcdNotFound as error:
        refuse(str(error))
    except (Failed, Refused) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted: all processes of the benchmark have been ended", style="bold")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(report, console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
