"""The cluster commands: each calls the client, prints, and returns the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastrain.api.names import headcount
from elastrain_cli.client import (
    NotAllowed,
    Refused,
)
from elastrain_cli.client import explain as explanations
from elastrain_cli.client.asynchronous import ENDED
from elastrain_cli.client.connection import Connection
from elastrain_cli.cluster import doctor as doctors
from elastrain_cli.cluster.output import Place, answers
from elastrain_cli.shell import view
from elastrain_cli.shell.answers import EXIT_FAILED, EXIT_NO_CLUSTER, Output
from elastrain_cli.shell.printing import document, print_data, print_job, print_text, table_console
from elastrain_cli.shell.terminal import EXIT_INTERRUPTED
from elastrain_resource.job import ElasticTrainingJob

T = TypeVar("T")


@answers
def list_jobs(place: Place, output: Output, *, all_namespaces: bool) -> int:
    """``elastrain list``; returns the exit code."""
    with place.jobs() as jobs:
        found = jobs.list(all_namespaces=all_namespaces)
        where = "on this cluster" if all_namespaces else f"in namespace {jobs.namespace}"
    if output is Output.NAME:
        print_text("\n".join(f"{job.namespace}/{job.name}" if all_namespaces else job.name for job in found))
    elif output in {Output.JSON, Output.YAML}:
        print_data({"apiVersion": "v1", "kind": "List", "items": [document(job) for job in found]}, output)
    elif not found:
        print(f"no jobs {where}; elastrain submit FILE starts a job", file=sys.stderr)  # noqa: T201
    else:
        wide = output is Output.WIDE
        table_console().print(view.table(found, datetime.now(UTC), namespaces=all_namespaces, wide=wide))
    return 0


@answers
def status(place: Place, name: str, output: Output) -> int:
    """``elastrain status``; returns the exit code."""
    with place.jobs() as jobs:
        job, whole = jobs.get(name), output in {Output.TABLE, Output.WIDE}
        workers = _if_allowed(lambda: jobs.workers(name)) if whole else ()
        events = _if_allowed(lambda: jobs.events(name)) if whole else ()
    print_job(job, workers, events, output)
    return 0


@answers
def watch(place: Place, name: str) -> int:
    """``elastrain watch``; returns the exit code."""
    console = table_console()
    try:
        with place.jobs() as jobs, _screen(console) as show:
            for job in jobs.watch(name):
                phase = view.phase_of(job)
                show(job, _if_allowed(lambda: jobs.workers(name), say=False) if console.is_terminal else ())
                if phase in ENDED:
                    return EXIT_FAILED if phase == "Failed" else 0
    except KeyboardInterrupt:
        print(f"{name} continues; elastrain watch {name} shows it again", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED
    raise Refused(f"{name}: was deleted")


@answers
def scale(place: Place, name: str, replicas: int) -> int:
    """``elastrain scale``; returns the exit code."""
    with place.jobs() as jobs:
        before = jobs.scale(name, replicas)
    print_text(f"{name}: {headcount(replicas)} desired (was {before})")
    return 0


@answers
def suspend(place: Place, name: str) -> int:
    """``elastrain suspend``; returns the exit code."""
    with place.jobs() as jobs:
        jobs.suspend(name)
    print_text(f"{name}: drains at a step boundary; elastrain resume {name} starts it again")
    return 0


@answers
def resume(place: Place, name: str) -> int:
    """``elastrain resume``; returns the exit code."""
    with place.jobs() as jobs:
        jobs.resume(name)
    print_text(f"{name}: starts again; elastrain watch {name}")
    return 0


@answers
def delete(place: Place, name: str) -> int:
    """``elastrain delete``; returns the exit code."""
    with place.jobs() as jobs:
        jobs.delete(name)
    print_text(f"{name}: deleted")
    return 0


@answers
def explain(place: Place, name: str) -> int:
    """``elastrain explain``; returns the exit code."""
    with place.jobs() as jobs:
        job, workers = jobs.get(name), jobs.workers(name)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text.assemble((job.name, "bold"), f"  {view.phase_of(job)}, {view.size_of(job)} workers"))
    for reason in explanations.explain(job, workers):
        console.print(Text(f"- {reason.text}"))
        if reason.change:
            console.print(Text(f"  → {reason.change}", style="dim"))
    return 0


@answers
def doctor(place: Place) -> int:
    """``elastrain doctor``; returns the exit code."""

    async def run() -> list[doctors.Finding]:
        connection = await Connection.open(namespace=place.namespace, context=place.context)
        try:
            return await doctors.examine(connection)
        finally:
            await connection.close()

    findings = asyncio.run(run())
    marks = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "unknown": ("?", "yellow"), "broken": ("✗", "red")}
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        mark, style = marks[finding.state]
        console.print(Text.assemble((f"{mark} ", style), (finding.check, "bold"), f": {finding.text}"))
        if finding.fix:
            console.print(Text(f"  → {finding.fix}", style="dim"))
    return EXIT_NO_CLUSTER if any(f.state == "broken" for f in findings) else 0


# ---- inside ----------------------------------------------------------------------------------------------------------
def _if_allowed(ask: Callable[[], Sequence[T]], *, say: bool = True) -> Sequence[T]:
    """The answer of ``ask``; empty, with the error on stderr, where the user may not read it."""
    try:
        return ask()
    except NotAllowed as error:
        if say:
            print(error, file=sys.stderr)  # noqa: T201
        return ()


@contextlib.contextmanager
def _screen(console: Console) -> Any:
    """Yields a function that shows a job: on a terminal in place, elsewhere as one line for each change."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda job, workers: live.update(view.details(job, workers, (), datetime.now(UTC)))
        return
    last = ("", "")

    def line(job: ElasticTrainingJob, _workers: object) -> None:
        nonlocal last
        rescale, why = job.status.last_rescale if job.status else None, view.summary(job)
        now = f"{job.name}: {view.phase_of(job)}, {view.size_of(job)} workers"
        now += f", last rescale {view.rescale_line(rescale)}" if rescale else ""
        if (now, why) != last:
            last = now, why
            text = now + view.position_of(job) + (f": {why}" if why else "")
            console.print(text, highlight=False, markup=False, soft_wrap=True)
            for item in view.failure_lines(job, datetime.now(UTC)):
                console.print(item, highlight=False, soft_wrap=True)

    yield line
