"""Runs a job on this machine: etcd, workers as processes, and the loop that executes ``plan``.

::

    with LocalJob("job.yaml", replicas=1) as job:
        job.wait(lambda s: s.progress is not None and s.progress.step >= 100, timeout=60, what="100 steps")
        job.scale(4)
        job.kill_worker("digits-0", "rank")
        job.wait(timeout=300)
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from elastrain import threads
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Member, Outcome, Phase, Progress, Target
from elastrain.etcd import Batch, EtcdClient, EtcdError
from elastrain.rendezvous.view_builder import ViewBuilder
from elastrain_cli.local.plan import Observed, Plan, Result, Worker, plan
from elastrain_cli.local.site import Site
from elastrain_cli.local.spec import LocalSpec, local_spec
from elastrain_cli.local.status import LocalStatus, WorkerStatus, in_generation, phase_of
from elastrain_cli.local.worker import LocalWorker
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.manifest import load

log = structlog.get_logger()

LOOP_SECONDS = 1.0
"""Seconds between two checks of state that sends no events, such as etcd's process."""


class LocalJob:
    """A running job; a context manager. Its methods may be called from any thread."""

    def __init__(
        self,
        manifest: str | Path | ElasticTrainingJob,
        *,
        directory: Path | None = None,
        etcd: str | Path | None = None,
        state_dir: str | Path | None = None,
        replicas: int | None = None,
        environment: Mapping[str, str] | None = None,
        lease_ttl: int = names.DEFAULT_LEASE_TTL,
        on_line: Callable[[str, str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        start: Callable[..., Any] | None = None,
    ) -> None:
        """``manifest``: a file, or a job whose paths are relative to ``directory`` (default: the current one).

        ``etcd``: the binary, if it is not on PATH. ``replicas``: overrides the manifest. ``environment``: variables for
        the workers; they override the manifest. ``on_line(worker, line)`` gets the workers' output, ``on_progress``
        each new progress record. Threads of the job call both; they must not block. ``start``: of agents, as
        ``subprocess.Popen``.

        Raises ``InvalidManifest``, ``EtcdNotFound``, and ``ValueError`` if ``replicas`` is not in the manifest's range.
        """
        if isinstance(manifest, ElasticTrainingJob):
            self.job, origin = manifest, Path.cwd()
        else:
            self.job, origin = load(manifest), Path(manifest).resolve().parent
        state = None if state_dir is None else Path(state_dir).resolve()
        self.spec: LocalSpec = local_spec(self.job, directory or origin, state, environment)
        self.keys = JobKeys(self.spec.namespace, self.spec.name, uuid.uuid4().hex[:12])
        self.result: Result | None = None
        self.message = ""
        self._on_progress = on_progress
        self._desired = self.spec.desired
        if replicas is not None:
            self._check_size(replicas)
            self._desired = replicas
        self._site = Site(self.spec, self.keys, etcd=etcd, lease_ttl=lease_ttl, on_line=on_line, start=start)
        self._client: EtcdClient | None = None
        self._changed = threading.Condition()
        self._views = ViewBuilder(self.keys)
        self._state = self._views.state
        self._workers: list[LocalWorker] = []
        self._next_ordinal = 0
        self._target: Target | None = None
        self._written: Target | None = None
        self._failed: LocalWorker | None = None
        self._stopping = False
        self._closing = False
        self._thread = threads.Thread(self._run, name="local-operator")

    # ---- life ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        self._site.prepare()
        try:
            self._client = EtcdClient(self._site.etcd)
            self._watch = self._client.watch_prefix(self.keys.prefix, self._on_batch)
            self._thread.start()
        except BaseException:
            self._site.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        assert self._client is not None
        self._watch.close()
        self._client.close()
        self._site.close()

    @property
    def logs_dir(self) -> Path:
        """The workers' output, ``<worker>.log``, and the agents' logs, ``<worker>.agent.log``."""
        return self._site.logs_dir

    @property
    def audit_dir(self) -> Path:
        """The audit log of this run: the samples that each rank consumed."""
        return self._site.audit_dir

    # ---- what to do ------------------------------------------------------------------------------------------------
    def scale(self, replicas: int) -> None:
        """Set the desired number of workers. Raises ``ValueError`` if ``replicas`` is not between min and max."""
        self._check_size(replicas)
        with self._changed:
            if self.result is not None or self._stopping:
                raise ValueError(f"replicas: {replicas}: the job is ending and cannot be scaled")
            self._desired = replicas
            self._changed.notify_all()

    def drain(self) -> None:
        """Stop at a step boundary, with a durable checkpoint if the manifest sets ``checkpoint``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def kill(self) -> None:
        """Send SIGKILL to all processes of the job."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            workers = list(self._workers)
        for worker in workers:
            worker.kill()

    def kill_worker(self, name: str, what: Literal["rank", "agent", "worker"] = "worker") -> None:
        """Send SIGKILL to the worker's first rank, its agent, or both. Raises ``KeyError``."""
        self.worker(name).kill(what)

    def stop_worker(self, name: str) -> None:
        """Send SIGTERM, as the deletion of a pod does: the worker drains and is replaced. Raises ``KeyError``."""
        self.worker(name).signal(signal.SIGTERM)

    # ---- how it stands -----------------------------------------------------------------------------------------------
    def worker(self, name: str) -> LocalWorker:
        """The worker ``name``, running or not. Raises ``KeyError``."""
        with self._changed:
            for worker in self._workers:
                if worker.name == name:
                    return worker
        raise KeyError(f"job {self.spec.name} has no worker {name}")

    def progress(self) -> Progress | None:
        """The newest progress record; None before the first."""
        with self._changed:
            return self._state.progress

    def generation(self) -> Generation | None:
        """The newest generation."""
        with self._changed:
            return self._state.generation

    def members(self) -> dict[str, Member]:
        """The registered members by worker; a younger incarnation hides an older one whose lease is about to expire."""
        with self._changed:
            ordered = sorted(self._state.members.values(), key=lambda m: m.create_revision)
            return {m.record.worker: m.record for m in ordered}

    def status(self) -> LocalStatus:
        with self._changed:
            return self._status()

    def wait(
        self, condition: Callable[[LocalStatus], object] | None = None, *, timeout: float, what: str = "the job to end"
    ) -> LocalStatus:
        """Wait until ``condition`` holds and return the status. Without ``condition``, wait until the job ends.

        ``timeout``: seconds. Raises ``TimeoutError``, and ``RuntimeError`` if the job ends before ``condition`` holds.
        Both messages contain ``what`` and the current status.
        """
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                status = self._status()
                if condition(status) if condition else self.result is not None:
                    return status
                if self.result is not None:
                    raise RuntimeError(f"waited for {what}, but the job ended: {self.result} {self.message}")
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {timeout:g} s for {what}; the job is {status.phase}: {status}")
                self._changed.wait(left)

    def await_change(self, timeout: float) -> None:
        """Wait until the status changes, at most ``timeout`` seconds."""
        with self._changed:
            self._changed.wait(timeout)

    def failure_tail(self, lines: int) -> str:
        """The last lines of the worker whose failure ended the job; empty if the job did not fail."""
        return self._site.tail(self._failed, lines) if self._failed is not None else ""

    # ---- the operator's loop -----------------------------------------------------------------------------------------
    def _run(self) -> None:
        """The loop's thread. Workers get SIGTERM when this thread ends."""
        try:
            self._operate()
        except (RuntimeError, OSError) as error:  # etcd or a worker cannot be started
            log.exception("local mode cannot continue")
            with self._changed:
                self.result, self.message = Result.FAILED, str(error)
            self.kill()

    def _operate(self) -> None:
        """Observe, plan, apply, wait, until everything has ended."""
        while True:
            with self._changed:
                decided = plan(self._observe(), time.monotonic())
                self._target = decided.target
            self._apply(decided)
            with self._changed:
                if self._closing and not any(w.ended is None for w in self._workers):
                    return
                if decided == plan(self._observe(), time.monotonic()):
                    self._changed.wait(self._pause(decided))

    def _pause(self, decided: Plan) -> float:
        if decided.again_at is None:
            return LOOP_SECONDS
        return max(0.01, min(LOOP_SECONDS, decided.again_at - time.monotonic()))

    def _observe(self) -> Observed:
        generation, members = self._state.generation, [m.record for m in self._state.members.values()]
        inside = in_generation(generation, members)
        holders = {m.worker for m in members if m.phase is Phase.FINISHED}
        return Observed(
            min=self.spec.min,
            max=self.spec.max,
            desired=self._desired,
            backoff_limit=self.spec.backoff_limit,
            spares=self.spec.spares,
            workers=[
                Worker(
                    w.name, w.ordinal, w.name in inside, w.leaving, w.ended, w.ended_at, w.trained, w.name in holders
                )
                for w in self._workers
            ],
            finished=self._state.progress is not None and self._state.progress.finished,
            first=generation.first.worker if generation is not None and generation.first is not None else "",
            stopping=self._stopping,
        )

    def _apply(self, decided: Plan) -> None:
        self._site.keep_etcd()
        for _ in range(decided.start):
            self._start_worker()
        with self._changed:
            for worker in self._workers:
                worker.leaving = worker.leaving or worker.name in decided.target.leaving
            if decided.result is not None and self.result is None:
                self.result = decided.result
                failed = decided.failure
                if failed is not None and failed.ended is not None:
                    self._failed = next(w for w in self._workers if w.name == failed.name)
                    self.message = f"{failed.name}: {failed.ended.reason}: {failed.ended.message}"
            self._changed.notify_all()
        self._write_target(decided.target)
        self._end_leases()

    def _end_leases(self) -> None:
        """End the leases of workers whose processes have all ended: the others need not wait for them."""
        assert self._client is not None
        with self._changed:
            held = {m.record.worker: m.lease for m in self._state.members.values() if m.lease}
            ended = [w for w in self._workers if w.ended is not None and w.name in held]
        for worker in ended:
            if worker.processes():
                continue  # its ranks are about to end
            try:
                self._client.end_lease(held[worker.name])
            except EtcdError as error:
                log.warning("the lease of an ended worker expires by itself", worker=worker.name, error=str(error))

    def _write_target(self, target: Target) -> None:
        if target == self._written:
            return
        assert self._client is not None
        try:
            self._client.put(self.keys.target, target.encode())
            self._written = target
        except EtcdError as error:
            log.warning("target not written; the next pass retries", error=str(error))

    def _start_worker(self) -> None:
        worker = self._site.start_worker(self._next_ordinal, self._on_end)
        with self._changed:
            self._next_ordinal += 1
            self._workers.append(worker)
            self._changed.notify_all()

    # ---- events from other threads ---------------------------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        with self._changed:
            before = self._state.progress
            self._views.apply(batch)
            progress = self._state.progress
            trained = {m.record.worker for m in self._state.members.values() if m.record.generation}
            for worker in self._workers:
                worker.trained = worker.trained or worker.name in trained
            self._changed.notify_all()
        if self._on_progress is not None and progress is not None and progress != before:
            self._on_progress(progress)

    def _on_end(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _check_size(self, replicas: int) -> None:
        if not self.spec.min <= replicas <= self.spec.max:
            raise ValueError(
                f"replicas: {replicas}: must be between minReplicas ({self.spec.min}) and maxReplicas ({self.spec.max})"
            )

    def _status(self) -> LocalStatus:
        state = self._state
        view = self._views.view("")
        members = {
            m.record.worker: m.record.model_copy(update={"generation": view.adopted_by(m)})
            for m in state.members.values()
        }
        return LocalStatus(
            job=self.spec.name,
            phase=phase_of(
                result=self.result,
                stopping=self._stopping,
                desired=self._desired,
                generation=state.generation,
                members={m.id: m for m in members.values()},
            ),
            min=self.spec.min,
            max=self.spec.max,
            desired=self._desired,
            spares=self.spec.spares,
            workers=tuple(_worker_status(w, members.get(w.name)) for w in self._workers),
            target=self._target,
            generation=state.generation,
            progress=state.progress,
            failures=sum(1 for w in self._workers if w.ended and w.ended.outcome is Outcome.FAILED),
            message=self.message,
        )


def _worker_status(worker: LocalWorker, member: Member | None) -> WorkerStatus:
    if worker.ended is not None:
        ended = worker.ended
        return WorkerStatus(
            name=worker.name,
            pid=worker.pid,
            phase=str(ended.outcome),
            ended=True,
            step=ended.step,
            message=f"{ended.reason}: {ended.message}" if ended.reason else ended.message,
        )
    if member is None:
        return WorkerStatus(name=worker.name, pid=worker.pid, phase="starting", leaving=worker.leaving)
    return WorkerStatus(
        name=worker.name,
        pid=worker.pid,
        phase=str(member.phase),
        node=member.node,
        member=member.id,
        generation=member.generation,
        step=member.step,
        restarts=member.restarts,
        leaving=worker.leaving,
        health=member.health,
        message=member.health_message,
    )
