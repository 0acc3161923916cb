"""Parallel drains of all nodes, by evictions that respect the job's disruption budget, and no other fault: the state of
the training survives all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrain.api import names
from elastrain_operator import clock as operator_clock
from sim.invariants import Invariants, Violation
from sim.run import _until, quiet
from sim.world import World

if TYPE_CHECKING:
    from sim.apiserver import Body

BEGIN, LASTS = 25.0, 120.0
RETRY = 1.0
"""Seconds between two attempts of a drain to evict a pod."""


class Drain:
    """``kubectl drain`` of all nodes at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pods = list(world.api.objects["pods"].values())
        self.refused = 0
        for pod in self.pods:
            self._evict(pod)

    @property
    def left(self) -> list[str]:
        """Pods (names) that are not evicted yet."""
        return [p["metadata"]["name"] for p in self.pods if self._now(p) is not None]

    @property
    def workers(self) -> int:
        """Workers that run."""
        return sum(_is_ready(p) for p in self.world.api.objects["pods"].values())

    def _now(self, pod: Body) -> Body | None:
        found = self.world.api.objects["pods"].get(pod["metadata"]["name"])
        return found if found and found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def _evict(self, pod: Body) -> None:
        world, now = self.world, self._now(pod)
        if now is None or "deletionTimestamp" in now["metadata"]:
            return
        if not self._is_allowed(now):
            self.refused += 1
            world.clock.after(RETRY, self._evict, pod)
            return
        world.ledger.taken_away(now)
        world.api.delete("pods", now["metadata"]["name"], now["metadata"]["uid"])
        if holders(world) and not (holders(world) - self._terminating()):
            raise Violation(5, f"{now['metadata']['name']} is evicted, and no worker that stays holds the state")

    def _is_allowed(self, pod: Body) -> bool:
        """The eviction API's rule."""
        world = self.world
        healthy = {
            _ordinal(p)
            for p in world.api.objects["pods"].values()
            if "deletionTimestamp" not in p["metadata"] and _is_ready(p) and _ordinal(p) in world.api.budget
        }
        return _ordinal(pod) not in world.api.budget or len(healthy - {_ordinal(pod)}) >= 1

    def _terminating(self) -> set[str]:
        pods = self.world.api.objects["pods"]
        return {name for name, p in pods.items() if "deletionTimestamp" in p["metadata"]}


def holders(world: World) -> set[str]:
    """Workers (pod names) whose ranks hold the state."""
    return {r.agent.worker for r in world.ranks if r.process.alive and r.has_state and r.step}


def drained(seed: int) -> Drain:
    """Run the world of ``seed`` through the drain. Raises ``Violation`` if it loses the state."""
    with quiet():
        world = World(seed)
        operator_clock.now = world.time_of_day
        invariants = Invariants(world)
        _until(world, invariants, BEGIN)
        drain, reached = Drain(world), max((r.step for r in world.ranks), default=0)
        before = len(world.ledger.commits)
        _until(world, invariants, BEGIN + LASTS)
        redone = [step for _, _, step, *_ in world.ledger.commits[before:] if step <= reached - 1]
        if redone:
            raise Violation(
                5, f"step {redone[0]} is committed again after the drain, {reached} were committed before it"
            )
        return drain


def _ordinal(pod: Body) -> int:
    return int(pod["metadata"]["labels"][names.LABEL_ORDINAL])


def _is_ready(pod: Body) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
