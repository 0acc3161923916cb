"""Nodes with a kubelet each: pods are started, signalled and killed, and their end is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastrain.agent.core import endings
from elastrain.agent.settings import Settings
from elastrain.api import names
from elastrain.api.records import Termination
from elastrain_operator.kube.client import ApiError
from sim import apiserver
from sim.agent import Agent
from sim.apiserver import Body
from sim.network import Refused
from sim.process import Process

if TYPE_CHECKING:
    from sim.world import World

NOT_READY_AFTER = 12.0
"""Seconds of silence after which a node's pods are not Ready any more."""
RETRY = 1.0


class Node:
    """One machine. Its kubelet tells the API server what it does, again and again until that hears it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.kubelet = Process(world.clock, f"kubelet {name}", name)
        self.containers: dict[str, Container] = {}
        """By UID of their pod."""
        self._statuses: dict[str, Body] = {}
        """The newest status of each pod, by UID: a late or repeated report never shows an older one."""

    # ---- pods --------------------------------------------------------------------------------------------------------
    def see(self, pod: Body) -> None:
        """A pod on this node is new or has changed."""
        uid = pod["metadata"]["uid"]
        container = self.containers.get(uid)
        if container is None:
            if "deletionTimestamp" in pod["metadata"]:
                self.report(pod["metadata"]["name"], uid, None)
            else:
                self.containers[uid] = Container(self, pod)
        elif "deletionTimestamp" in pod["metadata"]:
            container.stop()

    def report(self, name: str, uid: str, status: Body | None) -> None:
        """Write a pod's status; None: it is over, and its object may go."""
        if status is not None:
            self._statuses[uid] = status
        self._write(name, uid, status)

    def _write(self, name: str, uid: str, status: Body | None) -> None:
        api = self.world.api

        def write() -> None:
            api.answer()
            body = api.objects["pods"].get(name)
            if body is None or body["metadata"]["uid"] != uid:
                return
            if status is None:
                api.remove("pods", name)
            elif status is self._statuses[uid]:
                api.replace("pods", name, lambda b: {**b, "status": {**b.get("status", {}), **status}})

        def failed(error: Exception) -> None:
            if not isinstance(error, (Refused, ApiError)):
                raise error
            self.kubelet.after(RETRY, self._write, name, uid, status)

        self.world.network.call(self.kubelet, apiserver.PLACE, write, lambda _: None, failed, 3.0)

    # ---- faults ------------------------------------------------------------------------------------------------------
    def die(self) -> None:
        for container in self.containers.values():
            container.vanish()
        self.kubelet.die()
        self.world.dead.add(self.name)
        self.world.clock.after(NOT_READY_AFTER, self.world.node_silent, self.name, self.kubelet)

    def is_heard(self) -> None:
        """After a stop: pods are Ready again."""
        self.world.node_heard(self.name)
        for container in self.containers.values():
            container.report_running()

    def reboot(self) -> None:
        """It comes back with nothing running; what was there has failed."""
        self.world.dead.discard(self.name)
        self.world.node_heard(self.name)
        self.kubelet = Process(self.world.clock, f"kubelet {self.name}", self.name)
        gone, self.containers = self.containers, {}
        for uid, container in gone.items():
            self.containers[uid] = container
            container.over = True
            container.report_end(137, "", "Error")
        for body in list(self.world.api.objects["pods"].values()):
            if body["spec"].get("nodeName") == self.name and body["metadata"]["uid"] not in self.containers:
                self.kubelet.after(0.5, self.see, body)

    def processes(self) -> list[Process]:
        """All of it that a stop of the machine stops."""
        found = [self.kubelet]
        for container in self.containers.values():
            if container.agent is not None:
                found.append(container.process)
                found += [rank.process for rank in container.agent.ranks.values()]
        return [p for p in found if p.alive]


class Container:
    """The trainer container of one pod: an agent as PID 1."""

    def __init__(self, node: Node, pod: Body) -> None:
        self.node, self.world = node, node.world
        self.name, self.uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self.pod = pod
        self.process = Process(self.world.clock, self.name, node.name)
        self.agent: Agent | None = None
        self.over = False
        self._stopping = False
        self._started = ""
        self.address = f"10.0.0.{self.uid.removeprefix('uid-')}"
        node.kubelet.after(self.world.rng.uniform(0.2, 2.0), self._start)

    def _start(self) -> None:
        if self.over or self._stopping:
            return
        env = {e["name"]: e.get("value", "") for e in self.pod["spec"]["containers"][0]["env"]}
        env |= {names.ENV_WORKER: self.name, names.ENV_NODE: self.node.name, names.ENV_ADDRESS: self.address}
        env[names.ENV_POD_UID] = self.uid
        labels = self.pod["metadata"]["labels"]
        env |= {names.ENV_GROUP: labels.get(names.LABEL_GROUP, ""), names.ENV_PLACE: labels.get(names.LABEL_PLACE, "")}
        self._started = self._time()
        extra = b',"spoken":"newer"' if self.world.rng.random() < self.world.skew else b""
        self.agent = Agent(self.world, self.process, Settings.from_environment(env), self._ended, extra)
        self.report_running()

    def report_running(self) -> None:
        if self._started and not self.over:
            self._report({"phase": "Running", **self._state({"running": {"startedAt": self._started}}, ready=True)})

    def stop(self) -> None:
        """The pod is being deleted: SIGTERM, and SIGKILL when its grace is over."""
        if self._stopping:
            return
        self._stopping = True
        if self.agent is None or self.over:
            self.over = True
            self._remove()
            return
        self.process.do(self.agent.signalled)
        grace = float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        self.node.kubelet.after(grace, self.kill)

    def kill(self, code: int = 137) -> None:
        if self.over:
            return
        self.over = True
        if self.agent is not None:
            self.agent.died()
        self.report_end(code, "", "Error")

    def vanish(self) -> None:
        """With its node: nothing tells of it."""
        self.over = True
        if self.agent is not None:
            self.agent.died()

    def _ended(self, termination: Termination) -> None:
        if self.over or self.agent is None:
            return
        self.over = True
        self.agent.died()
        self.world.note_end(self.agent, termination)
        self.report_end(termination.exit_code, endings.encode(termination).decode(), "Completed")

    def report_end(self, code: int, message: str, reason: str) -> None:
        ended = {"exitCode": code, "finishedAt": self._time(), "message": message, "reason": reason}
        if self._started:
            ended["startedAt"] = self._started
        phase = "Failed" if code else "Succeeded"
        self._report({"phase": phase, **self._state({"terminated": ended}, ready=False)})
        body = self.world.api.objects["pods"].get(self.name)
        if self._stopping or (body is not None and "deletionTimestamp" in body["metadata"]):
            self._remove()

    def _time(self) -> str:
        """By the clock of its machine."""
        return self.world.wire_time(self.node.name)

    def _state(self, state: Body, *, ready: bool) -> Body:
        at = self._time()
        created = self.pod["metadata"]["creationTimestamp"]
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": created}
        conditions = [bound, {"type": "Ready", "status": str(ready), "lastTransitionTime": at}]
        return {"conditions": conditions, "containerStatuses": [{"name": "trainer", "state": state}]}

    def _report(self, status: Body) -> None:
        self.node.kubelet.after(0.01, self.node.report, self.name, self.uid, status)

    def _remove(self) -> None:
        self._stopping = True
        self.node.kubelet.after(0.5, self.node.report, self.name, self.uid, None)


def unready(body: Body, at: str) -> Body:
    """A pod whose node is silent."""
    status: dict[str, Any] = body.get("status", {})
    conditions = [
        {**c, "status": "Unknown", "lastTransitionTime": at} if c["type"] == "Ready" and c["status"] == "True" else c
        for c in status.get("conditions", [])
    ]
    return {**body, "status": {**status, "conditions": conditions}}
