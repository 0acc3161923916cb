"""A fake cluster in place of an API server, and a dashboard over it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from elastrain.api import names
from elastrain_cli.client import ClusterError
from elastrain_dashboard.access import Guard
from elastrain_dashboard.board import Board
from elastrain_dashboard.server import application
from namespaced import cluster, manifest
from raw_objects import RUNNING, Raw, event_body, job_body, node_body, pod_body

__all__ = ["cluster", "manifest"]


KINDS = {names.PLURAL: names.KIND, "pods": "Pod", "events": "Event", "nodes": "Node"}


@dataclass
class FakeCluster:
    """Objects by kind, and watches that report them: a :class:`elastrain_resource.reflector.Source`."""

    objects: dict[str, dict[str, Raw]] = field(default_factory=lambda: {plural: {} for plural in KINDS})
    trouble: Exception | None = None
    """What every request meets, if it is set; watches that are open break off with it."""
    lists: int = 0
    watches: int = 0
    _version: int = 1
    _queues: list[tuple[str, asyncio.Queue[Raw | Exception]]] = field(default_factory=list)

    def put(self, plural: str, body: Raw) -> None:
        self._version += 1
        body["metadata"] = {"uid": body["metadata"]["name"], **body["metadata"], "resourceVersion": str(self._version)}
        key = f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
        kind = "MODIFIED" if key in self.objects[plural] else "ADDED"
        self.objects[plural][key] = body
        self._tell(plural, {"type": kind, "object": body})

    def delete(self, plural: str, key: str) -> None:
        self._version += 1
        body = self.objects[plural].pop(key)
        self._tell(
            plural,
            {
                "type": "DELETED",
                "object": {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}},
            },
        )

    def breaks(self, error: Exception | None) -> None:
        """Fail with ``error`` from now on; None: work again."""
        self.trouble = error
        for _, queue in self._queues if error else ():
            queue.put_nowait(error)

    def _tell(self, plural: str, change: Raw | Exception) -> None:
        for of, queue in self._queues:
            if of == plural:
                queue.put_nowait(change)

    async def list_pages(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[tuple[list[Raw], str]]:
        self.lists += 1
        if self.trouble:
            raise self.trouble
        yield list(self.objects[path.rpartition("/")[2]].values()), str(self._version)

    async def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[Raw]:
        self.watches += 1
        if self.trouble:
            raise self.trouble
        queue: asyncio.Queue[Raw | Exception] = asyncio.Queue()
        entry = (path.rpartition("/")[2], queue)
        self._queues.append(entry)
        try:
            while True:
                change = await queue.get()
                if isinstance(change, Exception):
                    raise change
                yield change
        finally:
            self._queues.remove(entry)


@dataclass
class Stage:
    """A running dashboard, and the cluster that it shows."""

    cluster: FakeCluster
    board: Board
    client: TestClient[Any, Any]
    clock: list[datetime]

    @property
    def url(self) -> str:
        return str(self.client.make_url("/"))


@contextlib.asynccontextmanager
async def staged(
    found: FakeCluster,
    *,
    key: str = "",
    namespaces: tuple[str, ...] = (),
    heartbeat: float = 10.0,
    hosts: tuple[str, ...] = (),
    reviews: Any = None,
    started: datetime | None = None,
) -> AsyncIterator[Stage]:
    """A dashboard with fast ticks and retries, on the wall clock unless ``clock`` is given.

    ``reviews``: an API server that knows users; None: without login. ``started``: default now.
    """
    clock: list[datetime] = []

    def now() -> datetime:
        return clock[0] if clock else datetime.now(UTC)

    board = Board(found, namespaces, started or now(), retry_delays=(0.05,))
    guard = Guard(reviews, board.used_namespaces, time.monotonic) if reviews else None
    options = {"key": key, "hosts": hosts, "guard": guard}
    app = application(board, now, tick_seconds=0.02, heartbeat_seconds=heartbeat, **options)
    async with TestClient(TestServer(app)) as client:
        yield Stage(found, board, client, clock)


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def body() -> Callable[..., Raw]:
    """``body("job", ...)``, ``body("pod", ...)``, ``body("node", ...)``, ``body("event", ...)``: raw objects."""
    makers = {"job": job_body, "pod": pod_body, "node": node_body, "event": event_body}
    return lambda kind, *args, **fields: makers[kind](*args, **fields)


@pytest.fixture
def running() -> Raw:
    """The status of a job that trains with two of three workers."""
    return RUNNING


@pytest.fixture
def stage() -> Callable[..., contextlib.AbstractAsyncContextManager[Stage]]:
    """``async with stage(fake) as s:``: a dashboard of a cluster."""
    return staged


@pytest.fixture
def away() -> ClusterError:
    return ClusterError("cannot list jobs: no answer from https://api:6443 (refused)")
