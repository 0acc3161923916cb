"""A simulated kubelet and simulated agents of a job, on a real API server and a real etcd."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import builders
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import CheckpointState, Member, Outcome, Phase, Progress, Rescale, Target, Termination
from elastrain.etcd import EtcdClient
from raw_cluster import Cluster, wire_time


class Played:
    """Simulates kubelet and agents of one job: pods run at once, members form generations by the target; members beyond
    its desired size stand by. A worker that is evicted leaves, and its kubelet removes the pod.

    ``held``: pods that do not start. ``crash`` and ``finish`` end pods as an agent would.
    """

    def __init__(self, cluster: Cluster, client: EtcdClient, keys: JobKeys) -> None:
        self.cluster, self.client, self.keys = cluster, client, keys
        self.held: set[str] = set()
        self.may_start: Callable[[str, dict[str, Any]], bool] = lambda _name, _pod: True
        """Asked about each pod that is not held; a test that plays the scheduler answers by the pod's node."""
        self.hung: set[str] = set()
        """Workers whose containers do not end: their agents leave, and nothing removes their pods."""
        self.group_size = 1
        """Workers of a group; a generation has whole groups."""
        self.number, self.in_generation = 0, ()
        self.formed: list[frozenset[str]] = []
        """The workers of each generation."""
        self.evicted: list[str] = []
        """Workers whose pods were deleted while they ran."""
        self.step = 0
        """Committed steps."""
        self._rescales: tuple[Rescale, ...] = ()
        self._running: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def crash(self, pod: str, record: Termination) -> None:
        with self._lock:
            self._running.discard(pod)
            self.client.delete(self.keys.member(pod))
            self.cluster.end_trainer(pod, record)

    def lose_node(self, pod: str) -> None:
        """The node stops: the lease expires, and the node lifecycle controller marks the pod."""
        with self._lock:
            self._running.discard(pod)
            self.client.delete(self.keys.member(pod))
            started = self.cluster.pods()[pod]["status"]["containerStatuses"][0]["state"]
            self.cluster.set_trainer(pod, "Running", started, ready=False)

    def commit(self, step: int, saved: int = 0, seconds: Callable[[int], float] | None = None) -> None:
        """The present generation has committed ``step`` steps. ``saved``: step of the newest checkpoint; 0: none;
        ``seconds``: workers → the time of a step."""
        with self._lock:
            self.step, size = step, len(self.in_generation)
            progress = Progress(
                generation=self.number,
                world_size=size,
                members=size,
                step=step,
                samples=32 * step,
                step_seconds=seconds(size) if seconds and size else None,
                rescales=self._rescales,
                checkpoint=CheckpointState(step=saved, path="/c") if saved else None,
            )
            self.client.put(self.keys.progress, progress.encode())

    def finish(self, step: int) -> None:
        """Training ends: progress first, then the agents."""
        with self._lock:
            progress = Progress(generation=self.number, world_size=1, members=1, step=step, finished=True)
            self.client.put(self.keys.progress, progress.encode())
            for pod in sorted(self._running):
                self.cluster.end_trainer(pod, Termination(outcome=Outcome.FINISHED, step=step))
            self._running.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the simulation."""
        with self._lock:
            yield

    def target(self) -> Target:
        """The published target."""
        raw = self.client.get(self.keys.target)
        assert raw is not None
        return Target.decode(raw.value)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            # A concurrent deletion shows in the next pass.
            with self._lock, contextlib.suppress(urllib.error.HTTPError):
                self._step()

    def _step(self) -> None:
        pods = self.cluster.pods()  # first: a pod is created after its target
        raw = self.client.get(self.keys.target)
        if raw is None:
            return
        target = Target.decode(raw.value)
        self._running &= pods.keys()
        for name, pod in pods.items():
            ours = any(o["uid"] == self.keys.uid for o in pod["metadata"].get("ownerReferences", ()))
            pending = pod["status"]["phase"] == "Pending" and name not in self.held
            if ours and pending and self.may_start(name, pod):
                started = wire_time(datetime.now(UTC).replace(microsecond=0))
                self.cluster.set_trainer(name, "Running", {"running": {"startedAt": started}}, ready=True)
                self._running.add(name)
        evicted = {name for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"]}
        leaving = (set(target.leaving) | evicted) if target.desired else set(self._running)
        able = self._whole(sorted(self._running - leaving), pods)
        stayers = [name for name in able if name in self.in_generation]
        joiners = [name for name in able if name not in stayers]
        room = max(target.desired - len(stayers), 0)
        for name in joiners[room:]:
            member = Member(id=name, worker=name, address="127.0.0.1", phase=Phase.READY)
            if self.client.get(self.keys.member(name)) is None:
                self.client.put(self.keys.member(name), member.encode())
        wanted = tuple(sorted(stayers + joiners[:room]))
        if wanted != self.in_generation:
            self._form(wanted)
        for name in sorted(self._running & leaving):
            self.client.delete(self.keys.member(name))
            self._running.discard(name)
            if name not in self.hung:
                self.cluster.end_trainer(name, Termination(outcome=Outcome.DRAINED))
            if name in evicted:
                self.evicted.append(name)
        for name in evicted - self.hung:
            self.cluster.call("DELETE", f"{self.cluster.pods_path}/{name}", {"gracePeriodSeconds": 0})

    def _whole(self, able: list[str], pods: dict[str, Any]) -> list[str]:
        """Workers whose groups are whole, group by group, in each by place."""
        if self.group_size == 1:
            return able
        groups: dict[str, dict[str, str]] = {}
        for name in able:
            labels = pods[name]["metadata"]["labels"]
            groups.setdefault(labels[names.LABEL_GROUP], {})[labels[names.LABEL_PLACE]] = name
        return [g[place] for g in groups.values() if len(g) == self.group_size for place in sorted(g)]

    def _form(self, wanted: tuple[str, ...]) -> None:
        before, self.number, self.in_generation = len(self.in_generation), self.number + 1, wanted
        self.formed.append(frozenset(wanted))
        rescale = Rescale(
            generation=self.number,
            from_size=before,
            to_size=len(wanted),
            reason="Test",
            step=self.step,
            pause_seconds=0.1,
        )
        self._rescales = (*self._rescales, rescale)[-10:]
        generation = builders.generation(self.number, *wanted, reason="Test")
        self.client.put(self.keys.generation, generation.encode())
        for name in wanted:
            member = Member(id=name, worker=name, address="127.0.0.1", phase=Phase.READY, generation=self.number)
            self.client.put(self.keys.member(name), member.encode())
