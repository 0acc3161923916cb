"""Counts running pods, in a thread, and plays the members of elastrain's jobs: kwok's pods have no agents.

When the wanted number of a job's pods runs, the records that its agents would have written by then are written: one for
each member, and in one transaction the generation and its roster. There are no leases to renew and no progress, so an
operator of real jobs has more to read (docs/measured.md).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from bench_operator.cluster import NAMESPACE, ControlPlane
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, GenerationMember, Member, Phase, roster
from elastrain.etcd import EtcdClient, EtcdError, Range, Transaction

RESUME_SECONDS = 0.2
ATTEMPTS = 10
"""At one write to etcd."""
BATCH = 100
"""Records in one transaction: etcd permits 128."""
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class RunningPods:
    """Counts pods that run; ``last_change`` is when their number last changed."""

    def __init__(self, plane: ControlPlane, client: EtcdClient | None = None) -> None:
        """``client``: of the etcd in which members are played; None: they are not played."""
        self.last_change = time.monotonic()
        self.cpu = 0.0
        """Processor seconds of the thread."""
        self.error: BaseException | None = None
        self.wanted = 0
        """Workers of each job: a generation forms when so many run."""
        self._api = plane.api()
        self._client = client
        self._jobs: dict[JobKeys, dict[str, str]] = defaultdict(dict)  # name of a pod that runs -> its address
        self._running: set[str] = set()
        self._formed: dict[JobKeys, tuple[int, dict[str, str]]] = {}  # number and pods of the newest generation
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="running pods")
        self._thread.start()

    @property
    def count(self) -> int:
        """Raises ``RuntimeError`` if the watch has ended."""
        if self.error is not None:
            raise RuntimeError("the watch of running pods has ended") from self.error
        return len(self._running)

    def close(self) -> None:
        self._closed = True
        self._api.close()
        self._thread.join(10)

    def _run(self) -> None:
        query = "fieldSelector=status.phase%3DRunning&watch=true&allowWatchBookmarks=true&timeoutSeconds=7200"
        try:
            while not self._closed:
                self._running.clear()
                self._jobs.clear()
                # It begins with all that run now. The API server may end it at any time.
                for event in self._api.events(f"{_PODS}?{query}"):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] != "BOOKMARK":
                        self._take(event["type"], event["object"])
                        self.cpu = time.thread_time()
                self._api.close()
                time.sleep(RESUME_SECONDS)
        except BaseException as error:
            if not self._closed:  # else it is what close() does to a connection in use
                self.error = error

    def _take(self, kind: str, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        name = meta["name"]
        labels = meta.get("labels") or {}
        keys = JobKeys(NAMESPACE, labels.get(names.LABEL_JOB, ""), labels.get(names.LABEL_JOB_UID, ""))
        if kind == "DELETED":
            self._running.discard(name)
            self._jobs[keys].pop(name, None)
        else:
            self._running.add(name)
            self._jobs[keys][name] = pod["status"].get("podIP") or "127.0.0.1"
        if self._client and keys.uid:
            self._changed(keys)
        self.last_change = time.monotonic()

    def _changed(self, keys: JobKeys) -> None:
        """The pods of a job have changed: all of them form a generation when so many run as are wanted."""
        pods = self._jobs[keys]
        number, before = self._formed.get(keys, (0, {}))
        if self._client is not None and len(pods) == self.wanted and before != pods:
            self._formed[keys] = number + 1, dict(pods)
            register(self._client, keys, pods, number + 1)
            form(self._client, keys, pods, number + 1, "Grow" if number else "Start")


def identity(worker: str) -> str:
    """The id of a worker's played member."""
    return f"{worker}.played"


def register(client: EtcdClient, keys: JobKeys, pods: Mapping[str, str], generation: int) -> None:
    """The records of the members of ``pods`` (name → address), ready for or in ``generation``."""
    members = [
        Member(id=identity(w), worker=w, address=a, store_port=29500, phase=Phase.READY, generation=generation)
        for w, a in pods.items()
    ]
    for start in range(0, len(members), BATCH):
        puts = tuple((keys.member(m.id), m.encode()) for m in members[start : start + BATCH])
        _commit(client, Transaction(unchanged=(), puts=puts), f"register members of {keys.job}")


def form(client: EtcdClient, keys: JobKeys, pods: Mapping[str, str], number: int, reason: str) -> None:
    """Generation ``number`` of the members of ``pods``, by their ordinals, with its roster in one transaction."""
    placed = tuple(
        GenerationMember(id=identity(name), worker=name, address=pods[name], store_port=29500, rank_offset=i)
        for i, name in enumerate(sorted(pods, key=ordinal))
    )
    generation = Generation(number=number, members=placed, reason=reason, leader=placed[0].id)
    puts = [(keys.roster(number, i), part.encode()) for i, part in enumerate(roster.split(generation))]
    puts.append((keys.generation, roster.header(generation).encode()))
    old = Range(keys.rosters, end=keys.roster(number - roster.KEPT + 1)) if number > roster.KEPT else None
    _commit(client, Transaction((), tuple(puts), deleted=old), f"form generation {number} of {keys.job}")


def ordinal(worker: str) -> int:
    """The number at the end of a worker's name."""
    return int(worker.rpartition("-")[2])


def _commit(client: EtcdClient, transaction: Transaction, what: str) -> None:
    """Also after an error of a loaded etcd, or an expired token: the next call logs in again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            client.commit(transaction, what)
        except EtcdError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(RESUME_SECONDS)
        else:
            return
