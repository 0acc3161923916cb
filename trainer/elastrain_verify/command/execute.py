"""Executes one run: the reference as a plain process, the job by local mode, disturbed where the run says."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastrain.api.records import Phase
from elastrain.tether import tethered
from elastrain_cli.local.plan import Result
from elastrain_cli.local.runner import LocalJob
from elastrain_cli.local.spec import LocalSpec, worker_environment
from elastrain_cli.local.worker import read_termination
from elastrain_resource.job import ElasticTrainingJob
from elastrain_verify.command import job as manifests
from elastrain_verify.command import place
from elastrain_verify.command.follow import Follower
from elastrain_verify.files import Tokens, present, written
from elastrain_verify.runs import Kind, Place, Run
from elastrain_verify.settings import Settings, position

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 90.0
"""Least limit of each wait; a run whose reference was slow has a longer one."""
TAIL_LINES = 12
OPEN = 10**9
_NEVER_STUCK = {"ELASTRAIN_STUCK_TIMEOUT": "0"}
"""Ranks that are held are not stuck."""


Start = Callable[..., Any]
"""As ``subprocess.Popen``."""


class RunFailed(Exception):
    """The run did not come to its end. ``tail``: the last lines of the script's output."""

    def __init__(self, why: str, tail: str = "") -> None:
        super().__init__(why)
        self.tail = tail


class NotExercised(Exception):
    """The disturbance could not take place; why, as the end of a note."""


@dataclass
class Folders:
    """Where one run takes place."""

    root: Path
    _given: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        """The script's working directory."""
        return self.root / "files"

    @property
    def records(self) -> Path:
        return self.root / "records"

    @property
    def output(self) -> Path:
        """What the reference prints."""
        return self.root / "output.log"

    @property
    def state(self) -> Path:
        """Of local mode, with the output of the workers."""
        return self.root / "state"

    def furnish(self, source: Path) -> None:
        self.records.mkdir(parents=True)
        place.furnish(source, self.files)
        self._given = present(self.files)

    def written(self) -> dict[str, Tokens]:
        """The files that the script has written into its working directory."""
        return written(self.files, self._given)


def reference(spec: LocalSpec, folders: Folders, settings: Settings, limit: float, start: Start) -> None:
    """Run the script as one plain process. ``limit``: seconds. Raises :class:`RunFailed`."""
    environment = worker_environment(spec, os.environ, {**settings.to_environment(), "PYTHONUNBUFFERED": "1"})
    with folders.output.open("ab") as output:
        process = start(
            tethered(spec.command, signal.SIGKILL),
            env=environment, cwd=folders.files, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the script has not ended within {limit:.0f} s", _tail(folders.output)) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        raise RunFailed(f"the script exits with {code}", _tail(folders.output))


def _tail(path: Path) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


class JobRun:
    """One run of the job. For one thread."""

    def __init__(
        self,
        job: ElasticTrainingJob,
        run: Run,
        folders: Folders,
        settings: Settings,
        *,
        etcd: Path | None,
        limit: float,
        variables: Mapping[str, str],
        start: Start,
        stop: threading.Event,
    ) -> None:
        """``limit``: seconds of each wait. ``stop``: set if its outcome is not needed."""
        self._start, self._stop_asked = start, stop
        self._job, self._run, self._folders, self._limit, self._etcd = job, run, folders, limit, etcd
        self._variables = variables
        self._gate, self._held = folders.root / "gate", folders.root / "held"
        update: dict[str, object] = {"gate": self._gate}
        if (waits := {Place.TRANSFER: "held", Place.BACKWARDS: "halted"}.get(run.place)) is not None:
            update[waits] = self._held
        self._settings = settings.model_copy(update=update)
        self._follower = Follower(folders.records)
        self._allowed = OPEN
        self._local: LocalJob

    def execute(self) -> None:
        """Raises :class:`RunFailed` and :class:`NotExercised`."""
        run = self._run
        disturb = {
            Kind.GROWTH: self._grow, Kind.LOSS: self._lose, Kind.DRAIN: self._shrink, Kind.RESUME: self._stop,
        }.get(run.kind)  # fmt: skip
        with self._open(run.workers) as self._local:
            self._enter(run.workers)
            if disturb is not None:
                self._reach(run.at)
                disturb()
            self._allow(OPEN)
            self._end()
        if run.kind is Kind.RESUME:
            with self._open(run.then) as self._local:
                self._enter(run.then)
                self._allow(OPEN)
                self._end()

    def _enter(self, workers: int) -> None:
        """Wait until so many workers train together. Those that were ready first are held meanwhile."""
        self._await_ready(workers)
        self._nudge_until(lambda: self._whole(workers), f"all {workers} workers to train")

    def _reach(self, step: int) -> None:
        """Wait until all ranks are held at the run's place of ``step``, or of the next ones if they are beyond it."""
        where = position(step, in_body=self._run.place is not Place.BETWEEN) - 1
        while where < self._allowed:
            where += 2
        self._allow(where)
        self._until(self._all_wait, f"all ranks to reach step {step}")

    # -- disturbances --------------------------------------------------------------------------------------------------
    def _grow(self) -> None:
        self._local.scale(self._run.then)
        self._enter(self._run.then)

    def _lose(self) -> None:
        run, local = self._run, self._local
        if run.place is Place.TRANSFER:
            self._held.touch()
            local.scale(run.then)
            self._await_ready(run.then)
            self._nudge_until(lambda: any(s.receives for s in self._follower.look()), "a joiner to receive state")
            joiner = next(s.worker for s in self._follower.look() if s.receives)
            before = self._number()
            local.kill_worker(joiner, "rank")
            self._held.unlink()
        elif run.place is Place.BACKWARDS:
            before = self._number()
            self._held.touch()
            self._allow(self._allowed + 2)
            self._until(lambda: all(s.halts for s in self._follower.look()), "all ranks to run their first backward")
            local.kill_worker(self._first_rank(), "rank")
            self._held.unlink()
        elif run.place is Place.BODY:
            before = self._number()
            local.kill_worker(self._first_rank(), "rank")
            self._allow(self._allowed + 2)
        else:
            before = self._number()
            local.kill_worker(local.status().workers[-1].name)
            self._allow(self._allowed + 2)
        self._nudge_until(
            lambda: self._number() > before and local.status().in_force > 0, "the other ranks to train on"
        )
        self._enter(self._run.then)

    def _shrink(self) -> None:
        self._local.scale(self._run.then)
        self._nudge_until(lambda: self._local.status().in_force == self._run.then, "the worker to leave")

    def _stop(self) -> None:
        self._local.drain()
        self._nudge_until(lambda: self._local.result is not None, "all workers to stop", ends=True)

    # -- conditions ----------------------------------------------------------------------------------------------------
    def _all_wait(self) -> bool:
        waiting = [s for s in self._follower.look() if s.waits == self._allowed + 1]
        return len(waiting) >= self._run.workers * self._local.spec.nproc

    def _number(self) -> int:
        """Of the newest generation."""
        generation = self._local.generation()
        return generation.number if generation is not None else 0

    def _await_ready(self, workers: int) -> None:
        """Wait until so many workers train or are ready to."""

        def ready() -> bool:
            status = self._local.status()
            inside = status.generation
            phases = [w for w in status.running if (inside and inside.member(w.member)) or w.phase == Phase.READY]
            return len(phases) >= workers

        self._until(ready, f"{workers} workers to be ready")

    def _whole(self, workers: int) -> bool:
        return self._local.status().in_force == workers and not any(m.learning for m in self._local.members().values())

    def _first_rank(self) -> str:
        generation = self._local.generation()
        assert generation is not None
        return generation.members[0].worker

    # -- the gate ------------------------------------------------------------------------------------------------------
    def _allow(self, where: int) -> None:
        """Ranks may pass the positions up to ``where``."""
        self._allowed = where
        new = self._gate.with_suffix(".new")
        new.write_text(str(where))
        new.replace(self._gate)

    def _nudge_until(self, condition: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """As :meth:`_until`; ranks that are held compute single steps meanwhile."""

        def nudged() -> bool:
            if condition():
                return True
            held = max((s.waits for s in self._follower.look()), default=0)
            if held > self._allowed and time.monotonic() > nudged_at[0]:
                nudged_at[0] = time.monotonic() + 10 * POLL_SECONDS
                self._allow(held + 1)
            return False

        nudged_at = [time.monotonic() + 10 * POLL_SECONDS]
        self._until(nudged, what, ends=ends)

    def _until(self, condition: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Wait. ``ends``: the job may end meanwhile. Raises :class:`RunFailed`, :class:`NotExercised`."""
        end = time.monotonic() + self._limit
        while not condition():
            if self._stop_asked.is_set():
                raise RunFailed("it was not needed any more")
            if self._local.result is not None and not ends:
                self._check_result()
                raise NotExercised(f": the script ended while the run waited for {what}")
            if time.monotonic() > end:
                raise RunFailed(f"waited {self._limit:.0f} s for {what}", self._tail())
            time.sleep(POLL_SECONDS)

    # -- the job -------------------------------------------------------------------------------------------------------
    def _open(self, workers: int) -> LocalJob:
        self._allow(position(0, in_body=True) - 1)  # up to the first body, until all workers are there
        checkpoint = self._folders.root / "checkpoint" if self._run.kind is Kind.RESUME else None
        most = max(self._run.workers, self._run.then, 1)
        manifest = manifests.of_run(self._job, self._folders.files, workers=workers, most=most, checkpoint=checkpoint)
        environment = {**self._variables, **_NEVER_STUCK, **self._settings.to_environment()}
        return LocalJob(
            manifest, directory=self._folders.files, etcd=self._etcd, state_dir=self._folders.state,
            environment=environment, start=self._start,
        )  # fmt: skip

    def _end(self) -> None:
        self._until(lambda: self._local.result is not None, "the end of the job", ends=True)
        self._check_result()

    def _check_result(self) -> None:
        if self._local.result is Result.FAILED:
            raise RunFailed(
                self._local.message or "the job fails", self._local.failure_tail(TAIL_LINES) or self._tail()
            )
        for path in sorted(self._folders.state.glob("terminations/*/*.json")):
            ended = read_termination(path, 0)
            if ended.reason == "ScriptFailed":  # and the others have trained on without it
                raise RunFailed(f"{path.stem}: {ended.reason}: {ended.message}", ended.log_tail)

    def _tail(self) -> str:
        logs = sorted(self._local.logs_dir.glob("*.log"), key=lambda p: p.stat().st_mtime)
        return "\n".join(_tail(p) for p in logs if not p.name.endswith(".agent.log"))[-2000:]
