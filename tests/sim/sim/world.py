"""Everything that there is in a run, and the notes that the invariants read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from elastrain.agent.core.events import StartRanks
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Termination
from elastrain.etcd import Event, Put
from sim import apiserver
from sim.agent import Agent
from sim.apiserver import EPOCH, ApiServer, Body
from sim.clock import Clock
from sim.comm import Comm
from sim.etcd import Etcd
from sim.invariants import Ledger
from sim.kubelet import Node, unready
from sim.network import Network
from sim.operator import Installation, Operator
from sim.process import Process
from sim.ranks import Rank

JOB, NAMESPACE = "job", "ns"
TRACE = 60
"""Lines of the schedule that are kept for a failure's message."""
EVICT_AFTER = 20.0
"""Seconds after which pods of a silent node are to go."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, rng)
        self.etcd = Etcd(self.clock)
        self.skews: dict[str, float] = {}
        """Seconds by which clocks of machines differ from the operators': of nodes, and of the API server (``api``)."""
        self.foreign: set[str] = set()
        """Names of pods that belong to other users: no scheduler and no kubelet here handles them."""
        self.on_new_pod: Callable[[Body], None] = lambda _: None
        self.api = ApiServer(self.clock, lambda: self.wire_time("api"))
        self.agents: list[Agent] = []
        self.ranks: list[Rank] = []
        self.dead: set[str] = set()
        """Places from which no packet comes."""
        self.stale = 0.0
        """Seconds by which watches of operators may be late."""
        self.skew = rng.choice((0.0, 0.0, 0.5))
        """Share of agents that are of a newer version."""
        self.step_seconds = rng.choice((0.8, 1.5, 3.0))
        self.total_steps = rng.choice((10**6, 10**6, 10**6, 40))
        self.ledger = Ledger(self)
        self.lines: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=TRACE)
        self.trace_hash = 0
        self.echo: Callable[[str], None] | None = None
        """Gets each line of the schedule."""
        self._comms: dict[tuple[int, tuple[str, ...]], Comm] = {}
        self.api.on_write = self._api_wrote
        self.etcd.on_change = self._etcd_changed
        self.silent: set[str] = set()
        """Nodes that the API server counts as not ready."""
        self.pressed: set[str] = set()
        """Nodes whose memory is short: no new pod is bound to them."""
        self.cordoned: set[str] = set()
        self.room = rng.choice((0, 0, 1, 2))
        """Workers that a node takes, where operators share the cluster out; 0: they do not."""
        self.group_size = 2 if seed % 10 == 4 else 1
        """Workers of a replica: in every tenth schedule a group has two."""
        self.nodes = {f"node-{n}": Node(self, f"node-{n}") for n in range(rng.choice((3, 4)))}
        self.operators = [Operator(self, "operator-a", ours := Installation(self.etcd))]
        if rng.random() < 0.5:
            self.clock.after(1.0, lambda: self.operators.append(Operator(self, "operator-b", ours)))
        self.job = self._submit()

    def wire_time(self, place: str) -> str:
        """As the clock of a machine shows it."""
        return (self.time_of_day() + timedelta(seconds=self.skews.get(place, 0.0))).isoformat()

    def time_of_day(self) -> datetime:
        return EPOCH + timedelta(seconds=self.clock.now)

    # ---- the user ----------------------------------------------------------------------------------------------------
    def _submit(self) -> JobKeys:
        rng = self.rng
        most = rng.choice((1, 2, 3, 3, 4))
        least = rng.randint(1, most)
        container = {"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"]}
        pod = {"containers": [container], "terminationGracePeriodSeconds": 10}
        spec = {
            "minReplicas": least, "maxReplicas": most, "replicas": rng.randint(least, most), "template": {"spec": pod},
            "nprocPerNode": rng.choice((1, 1, 1, 2)), "backoffLimit": 100,
        }  # fmt: skip
        if self.group_size > 1:
            spec["parallelism"] = {"shards": self.group_size * spec["nprocPerNode"]}
        if self.room:
            container["resources"] = {"requests": {"cpu": "1"}}
            if rng.random() < 0.5:
                del spec["replicas"]
        body = self.api.create("jobs", {"metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": spec})
        return JobKeys(NAMESPACE, JOB, body["metadata"]["uid"])

    @property
    def body(self) -> Body | None:
        """The job's object."""
        return self.api.objects["jobs"].get(JOB)

    def change_spec(self, **fields: Any) -> None:
        """As ``kubectl`` does, whose user tries until it has worked."""
        if not self.api.up:
            self.clock.after(1.0, lambda: self.change_spec(**fields))
            return
        if self.body is not None:
            self.note("spec", *fields.items())

            def change(body: Body) -> Body:
                meta = {**body["metadata"], "generation": body["metadata"]["generation"] + 1}
                return {**body, "metadata": meta, "spec": {**body["spec"], **fields}}

            self.api.replace("jobs", JOB, change)

    # ---- the cluster -------------------------------------------------------------------------------------------------
    def _api_wrote(self, kind: str, event: str, body: Body) -> None:
        meta = body["metadata"]
        if kind != "leases":
            phase = body.get("status", {}).get("phase", "")
            self.note(f"{kind} {event}", meta["name"], body["spec"].get("nodeName", ""), phase)
        self.ledger.api_wrote(kind, event, body)
        if kind != "pods" or event == "DELETED" or meta["name"] in self.foreign:
            return
        if event == "ADDED":
            self.on_new_pod(body)
        node = body["spec"].get("nodeName")
        if not node and event == "ADDED":
            self.clock.after(self.rng.uniform(0.05, 0.5), self._schedule, meta["name"], meta["uid"])
        elif node:
            self.clock.after(self.network.delay(), self._kubelet_sees, node, meta["name"], meta["uid"])

    def _schedule(self, name: str, uid: str) -> None:
        body = self.api.objects["pods"].get(name)
        closed = self.dead | self.silent | self.pressed | self.cordoned
        live = [n for n in self.nodes if n not in closed and self._has_room(n)]
        if body is None or body["metadata"]["uid"] != uid or body["spec"].get("nodeName"):
            return
        if not self.api.up or not live:
            self.clock.after(1.0, self._schedule, name, uid)
            return
        node = self.rng.choice(live)
        self.api.replace("pods", name, lambda b: {**b, "spec": {**b["spec"], "nodeName": node}})

    def _has_room(self, node: str) -> bool:
        pods = self.api.objects["pods"].values()
        ended = ("Failed", "Succeeded")
        bound = [p for p in pods if p["spec"].get("nodeName") == node and p.get("status", {}).get("phase") not in ended]
        return not self.room or len(bound) < self.room

    def _kubelet_sees(self, node: str, name: str, uid: str) -> None:
        body = self.api.objects["pods"].get(name)
        if body is None or body["metadata"]["uid"] != uid or node in self.dead:
            return
        if self.network.is_cut(node, apiserver.PLACE) or not self.api.up:
            self.clock.after(1.0, self._kubelet_sees, node, name, uid)
            return
        self.nodes[node].kubelet.do(self.nodes[node].see, body)

    def node_silent(self, name: str, kubelet: Process) -> None:
        """The node lifecycle controller: its pods are not Ready any more, then they are to go."""
        node = self.nodes[name]
        if node.kubelet is not kubelet or (name not in self.dead and not kubelet.stopped):
            return
        if not self.api.up:
            self.clock.after(1.0, self.node_silent, name, kubelet)
            return
        self.silent.add(name)
        self.nodes_changed()
        at = self.wire_time("api")
        for pod in [p for p in self.api.objects["pods"].values() if p["spec"].get("nodeName") == name]:
            self.api.replace("pods", pod["metadata"]["name"], lambda b: unready(b, at))
        self.clock.after(EVICT_AFTER, self._evict, name, kubelet)

    def node_heard(self, name: str) -> None:
        self.silent.discard(name)
        self.nodes_changed()

    def nodes_changed(self) -> None:
        for operator in self.operators:
            operator.process.after(self.watch_lag(), operator.nodes_changed)

    def _evict(self, name: str, kubelet: Process) -> None:
        if self.nodes[name].kubelet is not kubelet or (name not in self.dead and not kubelet.stopped):
            return
        if not self.api.up:
            self.clock.after(1.0, self._evict, name, kubelet)
            return
        for pod in [p for p in self.api.objects["pods"].values() if p["spec"].get("nodeName") == name]:
            self.ledger.taken_away(pod)
            self.api.delete("pods", pod["metadata"]["name"])

    def watch_lag(self) -> float:
        """Seconds by which an operator's watch is late."""
        return self.network.delay() + (self.stale * self.rng.random() if self.stale else 0.0)

    # ---- agents and ranks --------------------------------------------------------------------------------------------
    def comm(self, generation: Generation) -> Comm:
        """What the ranks of a generation connect to."""
        key = (generation.number, tuple(generation.ids))
        if key not in self._comms:
            self._comms[key] = Comm(self, generation)
        return self._comms[key]

    # ---- notes -------------------------------------------------------------------------------------------------------
    def note(self, what: str, *words: Any) -> None:
        """A line of the schedule."""
        self.lines.append((self.clock.now, what, words))
        self.trace_hash = zlib.crc32(f"{self.clock.now!r} {what} {words!r}".encode(), self.trace_hash)
        if self.echo is not None:
            self.echo(line(self.lines[-1]))

    def _etcd_changed(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, Put):
                if event.kv.key == self.job.generation:
                    self.ledger.formed(event.kv)
                elif event.kv.key == self.job.target:
                    self.ledger.target(event.kv)
            else:
                self.note("etcd deletes", event.key.removeprefix(self.job.prefix))

    def note_commit(self, rank: Rank, comm: Comm, parts: dict[int, Any]) -> None:
        self.note("commit", rank.process.name, comm.generation.number, rank.step)
        self.ledger.committed(rank, comm, parts)

    def note_entered(self, rank: Rank, generation: Generation) -> None:
        self.note("enters", rank.process.name, generation.number, rank.step)
        self.ledger.entered.add(generation.number)

    def note_cold(self, generation: Generation) -> None:
        self.note("cold start", generation.number)

    def note_start(self, agent: Agent, incarnation: int) -> None:
        self.note("starts ranks", agent.worker, incarnation)
        self.ledger.started(agent, StartRanks(incarnation))

    def note_death(self, rank: Rank) -> None:
        self.note("rank dies", rank.process.name)

    def note_end(self, agent: Agent, termination: Termination) -> None:
        self.note("worker ends", agent.worker, termination.outcome.value, termination.reason, termination.message)

    def note_fault(self, context: dict[str, Any]) -> None:
        """A coroutine of the product has raised what nobody catches."""
        error = context.get("exception")
        if error is not None:
            raise error


def line(entry: tuple[float, str, tuple[Any, ...]]) -> str:
    when, what, words = entry
    return f"{when:9.3f} {what}: {' '.join(str(w) for w in words)}"
