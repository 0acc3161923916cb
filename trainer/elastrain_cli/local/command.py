"""The commands for local jobs: run a job in this terminal, or control a job that runs in another terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Self

import yaml
from pydantic import TypeAdapter

from elastrain import guests
from elastrain.api import names
from elastrain.api.names import headcount
from elastrain_cli.etcd_server import EtcdNotFound
from elastrain_cli.local.changes import finished_line
from elastrain_cli.local.control import ControlError, ControlServer, ask, control_directory, running_jobs
from elastrain_cli.local.hints import hint
from elastrain_cli.local.plan import Result
from elastrain_cli.local.runner import LocalJob
from elastrain_cli.local.script import job_of
from elastrain_cli.local.status import LocalStatus, resource, workers
from elastrain_cli.local.view import View, wants_live
from elastrain_cli.shell.answers import Output
from elastrain_cli.shell.printing import document, print_job
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.job.shown import Worker
from elastrain_resource.manifest import InvalidManifest, load, loads

EXIT_FAILED = 1
TAIL_LINES = 20
WATCH_SECONDS = 0.25
_DASHBOARD = "elastrain_dashboard.local"
"""Module of the guest."""


class BadOption(ValueError):
    """An option of the command line has an invalid value; the message names the option, the value and the rule."""


def run_job(
    manifest: Path | ElasticTrainingJob,
    *,
    etcd: Path | None,
    state_dir: Path | None,
    plain: bool,
    dashboard: bool = False,
    overrides: Sequence[str],
    variables: Sequence[str],
    arguments: Sequence[str] = (),
) -> int:
    """``elastrain run``; returns the exit code. A job that is no file has its paths from here."""
    with _Signals() as signals:
        return _run_job(
            manifest,
            signals,
            etcd=etcd,
            state_dir=state_dir,
            plain=plain,
            dashboard=dashboard,
            overrides=overrides,
            variables=variables,
            arguments=arguments,
        )


def _run_job(
    manifest: Path | ElasticTrainingJob,
    signals: _Signals,
    *,
    etcd: Path | None,
    state_dir: Path | None,
    plain: bool,
    dashboard: bool,
    overrides: Sequence[str],
    variables: Sequence[str],
    arguments: Sequence[str],
) -> int:
    view = View(live=wants_live(plain))
    try:
        job = LocalJob(
            with_overrides(manifest, overrides, arguments),
            directory=manifest.resolve().parent if isinstance(manifest, Path) else Path.cwd(),
            etcd=etcd,
            state_dir=state_dir,
            environment=dict(_pair(v, "--env") for v in variables),
            on_line=view.line,
        )
        control = ControlServer(control_directory(), job.spec.name, lambda request: _serve(job, request))
    except (InvalidManifest, EtcdNotFound, ControlError, BadOption) as error:
        if signals.caught:  # a signal may have caused the error
            return signals.exit_code
        print(error, file=sys.stderr)  # noqa: T201 - this is the command line
        return names.EXIT_USAGE
    try:
        return _Run(job, view, signals, guests.load(_DASHBOARD).LocalDashboard if dashboard else None).run()
    except (RuntimeError, OSError) as error:
        print(f"job {job.spec.name}: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    finally:
        control.close()


class _Signals:
    """Records Ctrl-C and SIGTERM without acting on them: a handler could interrupt the lock that draining needs."""

    def __init__(self) -> None:
        self.caught: list[int] = []

    def __enter__(self) -> Self:
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @property
    def exit_code(self) -> int:
        """The shell's exit code for the first signal: 128 plus its number."""
        return 128 + self.caught[0]

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.caught.append(signum)


class _Run:
    """One ``elastrain run``: signals, view and exit code."""

    def __init__(self, job: LocalJob, view: View, signals: _Signals, dashboard: Callable[..., Any] | None) -> None:
        self._job = job
        self._view = view
        self._signals = signals
        self._dashboard = dashboard
        self._acted = 0

    def run(self) -> int:
        with self._job, self._served(), self._view:
            spec = self._job.spec
            for note in spec.notes:
                self._view.say(note, style="yellow")
            self._view.say(f"job {spec.name}: state in {spec.state_dir}; `elastrain scale {spec.name} N` rescales it")
            status = self._watch()
        return self._conclude(status)

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        """The dashboard, if it is wanted; its address is printed."""
        if self._dashboard is None:
            yield
            return
        with self._dashboard(self._job.job, self._job.status) as served:
            self._view.say(f"dashboard: {served.url}")
            yield

    def _watch(self) -> LocalStatus:
        while True:
            self._obey()
            status = self._job.status()
            self._view.show(self._job.job, status)
            if self._job.result is not None:
                return status
            self._job.await_change(WATCH_SECONDS)

    def _obey(self) -> None:
        if self._view.reader_gone and signal.SIGPIPE not in self._signals.caught:
            self._signals.caught.append(signal.SIGPIPE)
        while self._acted < len(self._signals.caught):
            self._acted += 1
            if self._acted == 1:
                self._view.say("draining: all workers stop at the same step (repeat to kill them)", style="bold yellow")
                self._job.drain()
            else:
                self._view.say("killing all workers", style="bold red")
                self._job.kill()

    def _conclude(self, status: LocalStatus) -> int:
        where = f"at step {status.step}" if status.step else "before the first step"
        match self._job.result:
            case Result.FINISHED:
                text, style = finished_line(status)
                self._view.say(text, style=style)
                if any(self._job.audit_dir.glob("*.jsonl")):
                    self._view.say(f"audit: elastrain audit {self._job.audit_dir}", style="")
                return 0
            case Result.FAILED:
                self._view.say(f"job {status.job} failed {where}: {status.message}", style="bold red")
                tail = self._job.failure_tail(TAIL_LINES)
                self._view.say(tail, style="")
                if advice := hint(tail, self._job.spec.directory):
                    self._view.say(advice, style="bold yellow")
                return EXIT_FAILED
            case _ if not self._signals.caught:
                self._view.say(
                    f"job {status.job}: spec.suspend is true: no worker runs until it is false", style="bold yellow"
                )
                return 0
            case _:
                self._view.say(f"job {status.job} stopped {where}; {self._resume(status)}", style="bold yellow")
                return self._signals.exit_code

    def _resume(self, status: LocalStatus) -> str:
        if self._job.spec.ranks.checkpoint is None:
            return "spec.checkpoint is not set, so the next run starts from step 0"
        saved = status.progress.checkpoint if status.progress else None
        if saved is None or saved.error:
            return f"no checkpoint was written{': ' + saved.error if saved else ''}"
        return f"run the job again to resume from step {saved.step} ({saved.path})"


def with_overrides(
    manifest: Path | ElasticTrainingJob, overrides: Sequence[str], arguments: Sequence[str] = ()
) -> ElasticTrainingJob:
    """The job in ``manifest``, or the job that runs ``manifest`` with ``arguments`` if it is a Python script.
    ``overrides`` are ``field=value`` changes: a field of the spec by its path, or ``name``.

    Raises :class:`~elastrain_resource.manifest.InvalidManifest` and :class:`BadOption`.
    """
    job = manifest if isinstance(manifest, ElasticTrainingJob) else _job_in(manifest, arguments)
    if not overrides:
        return job
    document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    for override in overrides:
        path, value = _pair(override, "--set")
        *parents, field = ["metadata", "name"] if path == "name" else ["spec", *path.split(".")]
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise BadOption(f"--set {override}: {parent} is not a mapping")
        place[field] = yaml.safe_load(value)
    return loads(yaml.safe_dump(document), source=f"{manifest if isinstance(manifest, Path) else job.name} with --set")


def _job_in(manifest: Path, arguments: Sequence[str]) -> ElasticTrainingJob:
    if arguments and manifest.suffix != ".py":
        raise BadOption(f"{arguments[0]}: {manifest} is a manifest; the arguments belong into its command")
    return job_of(manifest, arguments) if manifest.suffix == ".py" else load(manifest)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadOption(f"{option} {text}: must be NAME=VALUE")
    return name, value


def _serve(job: LocalJob, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to another terminal's request. Raises ``ValueError`` with a message for the user."""
    match request:
        case {"do": "scale", "replicas": int(replicas)}:
            before = job.status().desired
            job.scale(replicas)
            return {"before": before, "desired": replicas}
        case {"do": "status"}:
            status = job.status()
            shown = resource(job.job, status, datetime.now(UTC))
            return {"job": document(shown), "workers": [asdict(w) for w in workers(status)]}
        case _:
            raise ValueError(f"unknown request: {request}")


def scale_job(job: str, replicas: int) -> str:
    """``elastrain scale``: returns the text to print. Raises :class:`ControlError`."""
    answer = ask(control_directory(), job, {"do": "scale", "replicas": replicas})
    return f"{job}: {headcount(answer['desired'])} desired (was {answer['before']})"


def show_status(job: str | None, output: Output) -> None:
    """``elastrain status``: prints the job, or all jobs of this machine. Raises :class:`ControlError`."""
    directory = control_directory()
    jobs = [job] if job else running_jobs(directory)
    for name in jobs:
        shown = ask(directory, name, {"do": "status"})
        workers = TypeAdapter(list[Worker]).validate_python(shown["workers"])
        print_job(ElasticTrainingJob.model_validate(shown["job"]), workers, (), output)
    if not jobs:
        print("no local job is running; elastrain list shows the jobs of the cluster", file=sys.stderr)  # noqa: T201
