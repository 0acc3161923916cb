"""What the commands do: ask the client, print, and return the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml
from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastrain.api.job import ElasticTrainingJob
from elastrain.api.manifest import InvalidManifest, load, loads
from elastrain.client import (
    AsyncJobs,
    ClusterError,
    JobNotFound,
    Jobs,
    NotAllowed,
    NotConnected,
    NotInstalled,
    Refused,
    Worker,
)
from elastrain.client.asynchronous import ENDED
from elastrain.client.connection import Connection
from elastrain.cluster import compose, view
from elastrain.cluster import doctor as doctors
from elastrain.cluster import explain as explanations
from elastrain.cluster.answers import EXIT_FAILED, EXIT_NO_CLUSTER, EXIT_REFUSED, Output
from elastrain.terminal import EXIT_INTERRUPTED

P = ParamSpec("P")
T = TypeVar("T")

NOTICE_SECONDS = view.UNSEEN_SECONDS
"""How long ``submit`` waits for the operator to take note of the job."""
PHASES = ("Pending", "Running", "Rescaling", "Suspended", *ENDED)
_UNCUT = 4096
"""Columns of a table that goes into a pipe or a file: nothing is cut there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where on which cluster; None: as the kubeconfig says."""

    namespace: str | None = None
    context: str | None = None

    def jobs(self) -> Jobs:
        return Jobs(namespace=self.namespace, context=self.context)


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """What ``submit`` was told about a script; its options, for a manifest, must be absent."""

    name: str | None
    image: str | None
    sizes: tuple[int, int | None, int | None]
    limits: tuple[str, ...]
    arguments: tuple[str, ...]


class Misused(Exception):
    """The options do not fit together; the message names them."""


def _answers(command: Callable[P, int]) -> Callable[P, int]:
    """``command``, but errors are printed and become exit codes."""

    @functools.wraps(command)
    def answering(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except JobNotFound as error:
            code, words = EXIT_REFUSED, f"{error}{_nearest(args)}"
        except (NotConnected, NotInstalled, NotAllowed) as error:
            code, words = EXIT_NO_CLUSTER, str(error)
        except (ClusterError, InvalidManifest, Misused, compose.BadScript) as error:
            code, words = EXIT_REFUSED, str(error)
        print(words, file=sys.stderr)  # noqa: T201 - this is a command
        return code

    return answering


@_answers
def list_jobs(place: Place, output: Output, *, all_namespaces: bool) -> int:
    with place.jobs() as jobs:
        found = jobs.list(all_namespaces=all_namespaces)
        where = "on this cluster" if all_namespaces else f"in namespace {jobs.namespace}"
    if output is Output.NAME:
        _print("\n".join(f"{job.namespace}/{job.name}" if all_namespaces else job.name for job in found))
    elif output in {Output.JSON, Output.YAML}:
        _data({"apiVersion": "v1", "kind": "List", "items": [_document(job) for job in found]}, output)
    elif not found:
        print(f"no jobs {where}; elastrain submit FILE starts one", file=sys.stderr)  # noqa: T201
    else:
        wide = output is Output.WIDE
        _console().print(view.table(found, datetime.now(UTC), namespaces=all_namespaces, wide=wide))
    return 0


@_answers
def submit(place: Place, file: Path, asked: ScriptJob, *, dry_run: bool) -> int:
    if file.suffix == ".py":
        body, files = _of_script(file, asked)
    else:
        if asked.image or asked.name or asked.limits or asked.arguments or asked.sizes != (1, None, None):
            raise Misused(f"{file}: is a manifest, which has name, image, sizes and arguments in itself")
        body, files = _document(load(file)), {}
    name = body["metadata"]["name"]
    if dry_run:
        documents = [body]
        if files:
            metadata = {"name": compose.files_name(name)}
            documents.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files})
        _print(yaml.safe_dump_all(documents, sort_keys=False))
        return 0
    with place.jobs() as jobs:
        job = jobs.submit(body)
        if files:
            try:
                jobs.add_files(job, compose.files_name(name), files)
            except ClusterError:
                jobs.delete(name)  # without its script it would only wait
                raise
        elsewhere = bool(place.namespace) or job.namespace != jobs.namespace
    where = f" -n {job.namespace}" if elsewhere else ""
    _print(f"{name}: submitted to namespace {job.namespace}; elastrain watch {name}{where}")
    _await_operator(Place(job.namespace, place.context), name)
    return 0


@_answers
def status(place: Place, name: str, output: Output) -> int:
    with place.jobs() as jobs:
        job = jobs.get(name)
        if output is Output.NAME:
            _print(job.name)
        elif output in {Output.JSON, Output.YAML}:
            _data(_document(job), output)
        else:
            workers = _if_allowed(lambda: jobs.workers(name))
            events = _if_allowed(lambda: jobs.events(name))
            _console().print(view.details(job, workers, events, datetime.now(UTC)))
    return 0


@_answers
def watch(place: Place, name: str) -> int:
    console = _console()
    try:
        with place.jobs() as jobs, _screen(console) as show:
            for job in jobs.watch(name):
                phase = view.phase_of(job)
                show(job, _if_allowed(lambda: jobs.workers(name), say=False) if console.is_terminal else ())
                if phase in ENDED:
                    return EXIT_FAILED if phase == "Failed" else 0
    except KeyboardInterrupt:
        print(f"{name} goes on; elastrain watch {name} shows it again", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED
    raise Refused(f"{name}: was deleted")


@_answers
def scale(place: Place, name: str, replicas: int) -> int:
    with place.jobs() as jobs:
        before = jobs.scale(name, replicas)
    _print(f"{name}: {replicas} workers wanted (was {before})")
    return 0


@_answers
def suspend(place: Place, name: str) -> int:
    with place.jobs() as jobs:
        jobs.suspend(name)
    _print(f"{name}: drains at a step boundary; elastrain resume {name} starts it again")
    return 0


@_answers
def resume(place: Place, name: str) -> int:
    with place.jobs() as jobs:
        jobs.resume(name)
    _print(f"{name}: starts again; elastrain watch {name}")
    return 0


@_answers
def delete(place: Place, name: str) -> int:
    with place.jobs() as jobs:
        jobs.delete(name)
    _print(f"{name}: deleted")
    return 0


@_answers
def logs(place: Place, name: str, *, follow: bool, tail: int) -> int:
    async def run() -> None:
        async with await AsyncJobs.connect(namespace=place.namespace, context=place.context) as jobs:
            await jobs.get(name)  # says so if there is none
            workers = sorted(await jobs.workers(name), key=lambda w: w.phase != "Failed")
            if not workers:
                print(f"{name}: has no workers now; elastrain explain {name}", file=sys.stderr)  # noqa: T201
            if follow:
                await _follow(jobs, name, tail)
            else:
                for worker in workers:
                    await _print_log(jobs, worker, follow=False, tail=tail)

    asyncio.run(run())
    return 0


async def _follow(jobs: AsyncJobs, name: str, tail: int) -> None:
    """The logs of all workers as they are written, of those that join later, too; until the job ends."""
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        async for job in jobs.watch(name):
            for worker in await jobs.workers(name):
                if worker.name not in followed and worker.phase != "Pending":
                    followed[worker.name] = asyncio.create_task(_print_log(jobs, worker, follow=True, tail=tail))
            if view.phase_of(job) in ENDED:
                break
        await asyncio.gather(*followed.values())
    finally:
        for task in followed.values():
            task.cancel()


async def _print_log(jobs: AsyncJobs, worker: Worker, *, follow: bool, tail: int) -> None:
    console = Console(soft_wrap=True, highlight=False)
    try:
        async for line in jobs.logs(worker.name, follow=follow, tail=tail):
            console.print(Text.assemble((f"{line.worker} │ ", "cyan"), Text.from_ansi(line.text)))
    except ClusterError as error:  # its container has not started: the others' logs are still wanted
        print(f"{worker.name} │ no log: {worker.reason or worker.phase} ({error})", file=sys.stderr)  # noqa: T201


@_answers
def explain(place: Place, name: str) -> int:
    with place.jobs() as jobs:
        job, workers = jobs.get(name), jobs.workers(name)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text.assemble((job.name, "bold"), f"  {view.phase_of(job)}, {view.size_of(job)} workers"))
    for reason in explanations.explain(job, workers):
        console.print(Text(f"- {reason.says}"))
        if reason.change:
            console.print(Text(f"  → {reason.change}", style="dim"))
    return 0


@_answers
def doctor(place: Place) -> int:
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
        console.print(Text.assemble((f"{mark} ", style), (finding.check, "bold"), f": {finding.says}"))
        if finding.fix:
            console.print(Text(f"  → {finding.fix}", style="dim"))
    return EXIT_NO_CLUSTER if any(f.state == "broken" for f in findings) else 0


@_answers
def dashboard(
    place: Place, namespaces: tuple[str, ...], *, all_namespaces: bool, address: str, port: int, keyed: bool
) -> int:
    from elastrain.cluster.dashboard.command import CannotListen, serve

    async def run() -> None:
        connection = await Connection.open(context=place.context)
        shown = () if all_namespaces else namespaces or (connection.namespace,)
        await serve(connection, namespaces=shown, address=address, port=port, keyed=keyed, say=_print_now)

    try:
        asyncio.run(run())
    except CannotListen as error:
        raise Misused(str(error)) from error
    return 0


# ---- inside --------------------------------------------------------------------------------------------------------
def _console() -> Console:
    """For tables: as wide as the terminal; anywhere else nothing is cut, unless $COLUMNS says how wide that is."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _UNCUT
    return Console(width=width)


def _if_allowed(ask: Callable[[], Sequence[T]], *, say: bool = True) -> Sequence[T]:
    """What is shown beside the job; whoever may read jobs need not be allowed to read it."""
    try:
        return ask()
    except NotAllowed as error:
        if say:
            print(error, file=sys.stderr)  # noqa: T201
        return ()


def _nearest(asked: Sequence[object]) -> str:
    """The job that was probably meant, as a question; empty where none is near."""
    place = next((a for a in asked if isinstance(a, Place)), None)
    name = next((a for a in asked if isinstance(a, str)), None)
    if place is None or name is None:
        return ""
    with contextlib.suppress(ClusterError), place.jobs() as jobs:
        near = difflib.get_close_matches(name, [job.name for job in jobs.list()], n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""


def _await_operator(place: Place, name: str) -> None:
    """Say so if nobody takes note of a job that was just submitted. It stays submitted."""
    try:
        with place.jobs() as jobs:
            jobs.wait(name, until=PHASES, timeout_seconds=NOTICE_SECONDS)
    except TimeoutError:
        print(  # noqa: T201
            f"{name}: no operator has taken note of it in {NOTICE_SECONDS:g} s; it starts when one does. "
            "elastrain doctor says what is wrong",
            file=sys.stderr,
        )
    except ClusterError as error:
        print(f"{name}: whether it starts is not known: {error}", file=sys.stderr)  # noqa: T201


def _of_script(file: Path, asked: ScriptJob) -> tuple[dict[str, Any], dict[str, str]]:
    """The job that runs the script, and the files that travel with it."""
    least, most, replicas = asked.sizes
    if asked.image is None:
        raise Misused(f"{file}: is a script: --image must name an image with torch and elastrain")
    if most is None:
        raise Misused(f"{file}: is a script: --max must say how many workers it may have")
    try:
        script = file.read_text(encoding="utf-8")
    except OSError as error:
        raise Misused(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misused(f"{file}: is not UTF-8 text, so it is no Python script: {error.reason}") from error
    pairs = [limit.partition("=") for limit in asked.limits]
    for key, equals, value in pairs:
        if not (key and equals and value):
            raise Misused(f"--limit {key}{equals}{value}: must be RESOURCE=N, as nvidia.com/gpu=1")
    body = compose.compose(
        asked.name or compose.job_name(file), script=script, file=file.name, arguments=asked.arguments,
        image=asked.image, sizes=(least, most, replicas), resources={key: value for key, _, value in pairs},
    )  # fmt: skip
    loads(
        yaml.safe_dump(body), source=f"the job for {file}"
    )  # the same rules as for a manifest, before anything is sent
    return body, {file.name: script}


@contextlib.contextmanager
def _screen(console: Console) -> Any:
    """A function that shows a job: over and over in place on a terminal, elsewhere one line whenever it differs."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda job, workers: live.update(view.details(job, workers, (), datetime.now(UTC)))
        return
    last = ""

    def line(job: ElasticTrainingJob, _workers: object) -> None:
        nonlocal last
        rescale = job.status.last_rescale if job.status else None
        now = f"{job.name}: {view.phase_of(job)}, {view.size_of(job)} workers"
        now += f", last rescale {view.rescale_line(rescale)}" if rescale else ""
        if now != last:
            last = now
            step = job.status.step if job.status else None
            console.print(now + ("" if step is None else f", step {step}"), highlight=False, soft_wrap=True)

    yield line


def _document(job: ElasticTrainingJob) -> dict[str, Any]:
    found: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found.get("metadata", {}).pop("managedFields", None)
    return found


def _data(value: Any, output: Output) -> None:
    _print(json.dumps(value, indent=2) if output is Output.JSON else yaml.safe_dump(value, sort_keys=False))


def _print(text: str) -> None:
    if text:
        print(text.rstrip("\n"))  # noqa: T201 - this is a command


def _print_now(text: str) -> None:
    """Also where standard output is a pipe, as for a program that waits for the address."""
    print(text, flush=True)  # noqa: T201 - this is a command
