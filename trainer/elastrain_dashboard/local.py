"""``elastrain run --dashboard``: the page of a job on this machine, until the job ends.

The board reads it as it reads a cluster: :class:`Machine` takes the API server's place and answers with the one status
that local mode writes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import structlog

from elastrain.api import names
from elastrain_cli.local.changes import changes, new_rescales
from elastrain_cli.local.status import LocalStatus, resource, workers
from elastrain_dashboard.board import Board
from elastrain_dashboard.command import CannotListen, listening, log_to_stderr
from elastrain_dashboard.server import application
from elastrain_resource import rescaled
from elastrain_resource.job import ElasticTrainingJob, reported
from elastrain_resource.job.shown import Worker
from elastrain_resource.reflector import GONE, WATCH_SECONDS, Body

ADDRESS = "127.0.0.1"
PORT = 8090
"""The first choice, so that a forwarded port stays; any free one if it is in use."""
LOOK_SECONDS = 0.25
"""Seconds between two looks at the status."""
_EVENTS = 50
_START_SECONDS = 10.0
_END_SECONDS = 3.0

Read = Callable[[], LocalStatus]


class Machine:
    """A :class:`elastrain_resource.reflector.Source` of one job on this machine. Use from one event loop."""

    def __init__(self, job: ElasticTrainingJob, read: Read, now: Callable[[], datetime]) -> None:
        self._job, self._read, self._now = job, read, now
        self._before: LocalStatus | None = None
        self._events: list[Body] = []
        self._said = 0
        self._began = self._changed = now()
        """When the status was first looked at, and when it was last another one."""

    async def list_pages(
        self, path: str, what: str, query: Mapping[str, str]
    ) -> AsyncGenerator[tuple[list[Body], str], None]:
        """All objects of the kind that ``path`` ends with. Their version is their content."""
        bodies = self._objects(path)
        yield bodies, _version(bodies)

    async def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncGenerator[Body, None]:
        """One error once the objects differ from the asked version: they are few, so the reflector lists them again."""
        for _ in range(int(WATCH_SECONDS / LOOK_SECONDS)):
            await asyncio.sleep(LOOK_SECONDS)
            if _version(self._objects(path)) != query["resourceVersion"]:
                yield {"type": "ERROR", "object": {"code": GONE}}
                return

    def _objects(self, path: str) -> list[Body]:
        status = self._read()
        self._listen(status)
        match path.rpartition("/")[2]:
            case names.PLURAL:
                return [self._job_body(status)]
            case "pods":
                return [self._pod_body(worker) for worker in workers(status)]
            case _:
                return self._events

    def _job_body(self, status: LocalStatus) -> Body:
        body = resource(self._job, status, self._changed).model_dump(mode="json", by_alias=True, exclude_none=True)
        created = {"namespace": self._job.namespace, "creationTimestamp": self._began.isoformat()}
        return {**body, "metadata": {**body["metadata"], **created}}

    def _pod_body(self, worker: Worker) -> Body:
        meta = {"name": worker.name, "namespace": self._job.namespace, "labels": {names.LABEL_JOB: self._job.name}}
        if worker.phase == "Terminating":
            meta["deletionTimestamp"] = self._began.isoformat()
        state = {"phase": worker.phase, "message": worker.message}
        return {"metadata": meta, "spec": {"nodeName": worker.node}, "status": state}

    def _listen(self, status: LocalStatus) -> None:
        """Add what has changed since the last look to the events; a rescale in the words of a cluster's operator."""
        before, self._before = self._before, status
        if status != before:
            self._changed = self._now()
        for r in new_rescales(before.progress if before else None, status.progress):
            if r.from_size:
                self._say(rescaled.REASON, rescaled.tell(reported.rescale_status(r)))
        for reason, sentence in changes(before, status):
            if reason != rescaled.REASON:
                self._say(reason, sentence)

    def _say(self, reason: str, message: str) -> None:
        self._said += 1
        meta = {"name": f"{self._job.name}.{self._said}", "namespace": self._job.namespace}
        about = {"kind": names.KIND, "namespace": self._job.namespace, "name": self._job.name}
        event = {"metadata": meta, "involvedObject": about, "reason": reason, "message": message}
        self._events = [*self._events, {**event, "lastTimestamp": self._now().isoformat()}][-_EVENTS:]


def _version(bodies: list[Body]) -> str:
    return json.dumps(bodies, sort_keys=True)


class LocalDashboard:
    """Serves the page from a thread; a context manager."""

    def __init__(self, job: ElasticTrainingJob, read: Read) -> None:
        """``read``: called from the thread; the job's status."""
        self._job, self._read = job, read
        self._key = secrets.token_urlsafe(12)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
        self._ready = threading.Event()
        self._port = 0
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The page of the job, with its access key."""
        return f"http://{ADDRESS}:{self._port}/?key={self._key}#/jobs/{self._job.namespace}/{self._job.name}"

    def __enter__(self) -> Self:
        """Raises :class:`RuntimeError` if nothing can be served."""
        self._logging = structlog.get_config()
        log_to_stderr(logging.WARNING)
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if not self._port:
            raise RuntimeError(f"--dashboard: {self._failure or f'did not start within {_START_SECONDS:g} s'}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        structlog.configure(**self._logging)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except CannotListen as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        def now() -> datetime:
            return datetime.now(UTC)

        board = Board(Machine(self._job, self._read, now), (self._job.namespace,), now())
        app = application(board, now, key=self._key)
        async with listening(app, ADDRESS, PORT, 0) as port:
            self._port = port
            self._ready.set()
            await self._ended.wait()
            await self._show_end(board)

    async def _show_end(self, board: Board) -> None:
        """Until browsers have the last state: a stream that ends discards what waits in it."""
        for _ in range(int(_END_SECONDS / LOOK_SECONDS)):
            await asyncio.sleep(LOOK_SECONDS)
            if any(row["phase"] == self._read().phase for row in board.rows()):
                break
        await asyncio.sleep(LOOK_SECONDS)
