"""One run with one large job: it is created, loses workers at once, outlives an API server that comes and goes, gets
another template, and ends."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench_harness.machine import Machine
from bench_harness.stats import Model
from bench_operator.cluster import NAMESPACE, ControlPlane
from bench_operator.members import RunningPods, form, identity, ordinal, register
from bench_operator.net import Refused
from bench_operator.results import Cost
from bench_operator.scenario import Scenario, Settings
from bench_operator.systems import SYSTEMS, Slim
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Target
from elastrain.etcd import EtcdClient, EtcdError

NAME = "job-0"
PACE = 0.2
"""Seconds between two looks of the played members."""
AWAY, BACK = 2.0, 3.0
"""Seconds for which a flapping API server answers nothing, and answers."""
SENDERS = 16
"""Connections that delete pods at once."""
_JOB = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}/{NAME}"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Phase(Model):
    """One phase of the job."""

    name: str
    cost: Cost
    status_bytes: int
    """Of the job's status, as JSON, at the end of the phase."""
    etcd_bytes: int
    """Keys and values of the job's records."""
    replaced_p99: float | None = None
    """Seconds from a loss until the API server had created its replacement."""
    created: int = 0
    """Pods that the operator created."""


class LargeRun(Model):
    """One size."""

    workers: int
    lost: int
    phases: tuple[Phase, ...]


class LargeReport(Model):
    """All sizes."""

    machine: Machine
    kubernetes: str
    kwok: str
    system: str
    runs: tuple[LargeRun, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """What one run is asked to do."""

    workers: int
    lost: int
    flapping: float
    """Seconds."""
    limit: float
    profile: bool


class OneJob(RunningPods):
    """Plays the members of one job: a generation follows each loss, newcomer and request to leave."""

    def __init__(self, plane: ControlPlane, client: EtcdClient) -> None:
        self._keys: JobKeys | None = None
        super().__init__(plane, client)
        self._member_api, self._etcd = plane.api(), client
        self._number, self._in_force, self._known = 0, dict[str, str](), dict[str, str]()
        self._player = threading.Thread(target=self._play, daemon=True, name="played members")
        self._player.start()

    def close(self) -> None:
        super().close()
        self._player.join(10)

    def _changed(self, keys: JobKeys) -> None:
        self._keys = keys

    def _play(self) -> None:
        while not self._closed:
            time.sleep(PACE)
            with contextlib.suppress(EtcdError, OSError, Refused):  # the API server may be away: looked at again
                if self._keys is not None:
                    self._look(self._keys, dict(self._jobs[self._keys]))

    def _look(self, keys: JobKeys, there: Mapping[str, str]) -> None:
        found = self._etcd.get(keys.target)
        if found is None:
            return
        target = Target.decode(found.value)
        for gone in self._known.keys() - there.keys():
            self._etcd.delete(keys.member(identity(gone)))
            del self._known[gone]
        new = {name: address for name, address in there.items() if name not in self._known}
        register(self._etcd, keys, new, self._number)
        self._known |= new
        stay = sorted((n for n in there if n not in target.leaving), key=ordinal)[: target.desired]
        members = {name: there[name] for name in stay}
        if members != self._in_force and len(members) >= max(target.min, 1):
            self._number += 1
            form(self._etcd, keys, members, self._number, target.reason or "Start")
            first = stay[0]
            register(self._etcd, keys, {first: there[first]}, self._number)
            self._in_force = members
        for name in set(target.leaving) & there.keys() - self._in_force.keys():
            self._member_api.call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})


def measure(
    system: str, size: Size, nodes: int, directory: Path, say: Callable[[str], None], keep: Callable[[LargeRun], None]
) -> None:
    """``keep`` is called after each phase, with all phases so far. Raises ``Failed`` if one does not end in time."""
    kind = SYSTEMS[system]
    assert issubclass(kind, Slim)
    with ControlPlane(directory, nodes) as plane:
        slim = kind(plane, profile=size.profile)
        try:
            slim.start()
            pods = OneJob(plane, slim.etcd())
            try:
                _Large(slim, pods, size, nodes, say).run(keep)
            finally:
                pods.close()
        finally:
            slim.close()


class _Large:
    def __init__(self, system: Slim, pods: OneJob, size: Size, nodes: int, say: Callable[[str], None]) -> None:
        settings = Settings(nodes, size.workers, 0, size.limit, secret=False, profile=size.profile)
        self._scenario = Scenario(system, pods, 1, settings, say)
        self._system, self._plane, self._size = system, system.plane, size
        self._lost = min(size.lost, size.workers - 1)

    def run(self, keep: Callable[[LargeRun], None]) -> None:
        phases: tuple[Phase, ...] = ()
        for phase in self._phases():
            phases = (*phases, phase)
            keep(LargeRun(workers=self._size.workers, lost=self._lost, phases=phases))

    def _phases(self) -> Iterator[Phase]:
        yield self._phase("create", self._create)
        deleted: list[float] = []
        yield self._phase(f"{self._lost} lost at once", lambda: self._lose(deleted), deleted)
        yield self._phase(f"API server flaps for {self._size.flapping:g} s", self._flap)
        yield self._phase("roll-out of a template", self._roll_out)
        yield self._phase("end", self._end, pods=0)

    def _phase(self, name: str, act: Callable[[], None], lost: Sequence[float] = (), pods: int | None = None) -> Phase:
        """``lost``: filled by ``act`` with the times of its losses. ``pods``: that run in the end; None: all."""
        mark = self._system.audit.mark()
        cost = self._scenario.cost(name, act, self._size.workers if pods is None else pods)
        created = sorted(self._system.audit.created_pods(mark).values())
        waits = sorted(made - gone for made, gone in zip(created, sorted(lost), strict=False))
        job = self._plane.api().get(_JOB, absent=True)
        records = self._system.etcd().get_prefix(f"/elastrain/{NAMESPACE}/{NAME}/")[0]
        return Phase(
            name=name,
            cost=cost,
            status_bytes=len(json.dumps(job["status"], separators=(",", ":"))) if job else 0,
            etcd_bytes=sum(len(r.key) + len(r.value) for r in records),
            replaced_p99=round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2) if waits else None,
            created=len(created),
        )

    # ---- phases ------------------------------------------------------------------------------------------------------
    def _create(self) -> None:
        body = self._system.manifest(NAME, self._size.workers)
        body["spec"] |= {"maxReplicas": self._size.workers, "maxUnavailable": max(self._size.workers // 20, 1)}
        self._plane.api().call("POST", _JOB.removesuffix(f"/{NAME}"), body)

    def _lose(self, deleted: list[float]) -> None:
        items = self._plane.api().get(_PODS)["items"]
        chosen = random.Random(0).sample([p["metadata"]["name"] for p in items], self._lost)
        local = threading.local()

        def delete(name: str) -> None:
            if not hasattr(local, "api"):
                local.api = self._plane.api()
            at = time.time()
            local.api.call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
            deleted.append(at)

        with ThreadPoolExecutor(SENDERS) as senders:
            list(senders.map(delete, chosen))
        everyone = set(chosen)
        self._until(lambda: self._created_since(everyone), "the lost workers are replaced")

    def _created_since(self, former: set[str]) -> bool:
        there = {p["metadata"]["name"] for p in self._plane.api().get(_PODS)["items"]}
        return len(there) >= self._size.workers and not there & former

    def _flap(self) -> None:
        api, ends = self._plane.pid("apiserver"), time.monotonic() + self._size.flapping
        while time.monotonic() < ends:
            self._plane.processes.send([api], signal.SIGSTOP)
            time.sleep(AWAY)
            self._plane.processes.send([api], signal.SIGCONT)
            time.sleep(BACK)

    def _roll_out(self) -> None:
        before = {p["metadata"]["name"] for p in self._plane.api().get(_PODS)["items"]}
        job = self._plane.api().get(_JOB)
        containers = [{**c, "image": "trainer:2"} for c in job["spec"]["template"]["spec"]["containers"]]
        self._plane.api().merge(_JOB, {"spec": {"template": {"spec": {"containers": containers}}}})
        self._until(lambda: self._created_since(before), "all workers have the new template")

    def _end(self) -> None:
        self._plane.api().call("DELETE", _JOB)

    def _until(self, condition: Callable[[], object], what: str) -> None:
        self._system.until(condition, self._size.limit, what, every=1)
