"""A cluster that is told what it has, instead of an API server; and a dashboard on top of it."""

# ruff: noqa: E501 - objects of the API server on one line
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from elastrain.api import names
from elastrain.client import ClusterError
from elastrain.cluster.dashboard.board import Board
from elastrain.cluster.dashboard.server import application
from namespaced import cluster, manifest

__all__ = ["cluster", "manifest"]


Raw = dict[str, Any]
KINDS = {names.PLURAL: names.KIND, "pods": "Pod", "events": "Event", "nodes": "Node"}


@dataclass
class FakeCluster:
    """Objects by kind, and watches that tell of them: a :class:`Reader`."""

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
        """From now on; None: all is well again."""
        self.trouble = error
        for _, queue in self._queues if error else ():
            queue.put_nowait(error)

    def _tell(self, plural: str, change: Raw | Exception) -> None:
        for of, queue in self._queues:
            if of == plural:
                queue.put_nowait(change)

    async def pages(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[tuple[list[Raw], str]]:
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


def job_body(name: str = "digits", namespace: str = "research", *, status: Raw | None = None, **spec: Any) -> Raw:
    container = {
        "name": "trainer",
        "image": "train:1",
        "command": ["python", "train.py"],
        "env": [{"name": "S", "value": "hidden"}],
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": "2030-01-01T00:00:00Z",
        "generation": 1,
    }
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata,
        "spec": {"maxReplicas": 4, "template": {"spec": {"containers": [container]}}, **spec},
        "status": {"observedGeneration": 1, **(status or {})},
    }  # fmt: skip


def pod_body(
    job: str, ordinal: int, node: str = "node-a", gpus: int = 1, phase: str = "Running", namespace: str = "research"
) -> Raw:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {
            "name": f"{job}-{ordinal}", "namespace": namespace,
            "labels": {names.LABEL_JOB: job, names.LABEL_ORDINAL: str(ordinal)},
        },
        "spec": {"nodeName": node, "containers": [{"name": "trainer", "resources": {"limits": limits}}]},
        "status": {"phase": phase, "startTime": "2030-01-01T00:00:00Z"},
    }  # fmt: skip


def node_body(name: str, gpus: int = 4, ready: bool = True) -> Raw:
    return {
        "metadata": {"name": name}, "spec": {},
        "status": {
            "allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }  # fmt: skip


def event_body(
    job: str, reason: str, message: str, time: str, kind: str = "Normal", namespace: str = "research"
) -> Raw:
    return {
        "metadata": {"name": f"{job}.{reason}.{time}", "namespace": namespace},
        "involvedObject": {"kind": names.KIND, "namespace": namespace, "name": job},
        "type": kind, "reason": reason, "message": message, "lastTimestamp": time, "count": 1,
    }  # fmt: skip


RUNNING: Raw = {
    "phase": "Running", "desiredReplicas": 3, "readyReplicas": 2, "step": 120,
    "generation": {"number": 2, "size": 2, "reason": "Grow"},
    "progress": {"step": 120, "of": 1000, "epoch": 1, "samplesPerSecond": 640.0, "loss": 0.4321, "eta": "2030-01-01T01:00:00+00:00"},
    "lastRescale": {
        "from": 1, "to": 2, "reason": "Grow", "pauseSeconds": 0.31, "lostSteps": 0, "time": "2030-01-01T00:10:00+00:00",
        "phases": {"connect": 0.02, "transfer": 0.05, "first_step": 0.26},
    },
    "acceleratorSeconds": {"training": 900.0, "rescaling": 40.0, "waiting": 60.0, "redone": 0.0, "held": 2},
    "conditions": [
        {"type": "Grown", "status": "False", "reason": "NoRoom", "message": "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker", "lastTransitionTime": "2030-01-01T00:00:00Z"},
    ],
}  # fmt: skip


@dataclass
class Stage:
    """A dashboard that is served, and the cluster that it shows."""

    cluster: FakeCluster
    board: Board
    client: TestClient[Any, Any]
    clock: list[datetime]

    @property
    def url(self) -> str:
        return str(self.client.make_url("/"))


@contextlib.asynccontextmanager
async def staged(
    found: FakeCluster, *, key: str = "", namespaces: tuple[str, ...] = (), heartbeat: float = 10.0
) -> AsyncIterator[Stage]:
    """Ticks come fast, retries too, and time is the wall clock's unless ``clock`` is given a moment."""
    clock: list[datetime] = []

    def now() -> datetime:
        return clock[0] if clock else datetime.now(UTC)

    board = Board(found, namespaces, now(), retry_delays=(0.05,))
    app = application(board, now, key=key, tick_seconds=0.02, heartbeat_seconds=heartbeat)
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
