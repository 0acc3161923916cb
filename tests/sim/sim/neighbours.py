"""A job of high priority beside the minimum of another one, under random faults, with a scheduler that evicts by
priority: no Pending pod of the first is there for which it would."""

from __future__ import annotations

from functools import partial
from unittest import mock

from elastrain_operator import clock as operator_clock
from elastrain_operator.allocation.snapshot import Claims, Job, Policy, Worker, WorkerShape
from elastrain_operator.cluster.capacity import Capacity
from sim import operator
from sim.faults import Faults
from sim.invariants import Invariants, Violation
from sim.operator import Inventory
from sim.run import FAULTS_END, QUIET, _until, quiet
from sim.world import World

HOME = "node-0"
DEMAND = (("cpu", 1000), ("pods", 1))


def disturbed(seed: int) -> bool:
    """Run the world of ``seed`` with a pod of the other job on one node; False: operators do not share it out. Raises
    ``Violation``."""
    signals = mock.patch.object(operator, "Policy", partial(Policy, pending=1))
    with quiet(), mock.patch.object(Inventory, "priority", lambda _, name: name != "low"), signals, _claimed():
        world = World(seed)
        operator_clock.now = world.time_of_day
        if not world.room:
            return False
        invariants = Invariants(world)
        Scheduler(world)
        world.change_spec(minReplicas=min(2, world.room), maxReplicas=8, replicas=None)  # it takes all that there is
        Faults(world).plan(1.0, FAULTS_END)
        _until(world, invariants, FAULTS_END + QUIET)
        return True


def _claimed() -> mock._patch[object]:
    """Each operator knows the other job."""
    workers = (Worker("other-0", HOME, DEMAND, trains=True),)
    kind = WorkerShape(DEMAND)
    other = Job("other", "sim", "other", 1, 1, kind, elastic=False, workers=workers, size=1, trains=True)
    made = Capacity.__init__

    def init(self: Capacity, *args: object) -> None:
        made(self, *args)  # type: ignore[arg-type]
        self.claim("other", Claims(other, "low"))

    return mock.patch.object(Capacity, "__init__", init)


class Scheduler:
    """The world's, which knows the other job's pod."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._has_room, self._schedule = world._has_room, world._schedule
        world._has_room = self.has_room  # type: ignore[method-assign]
        world._schedule = self.schedule  # type: ignore[method-assign]

    def has_room(self, node: str, *, evicting: bool = False) -> bool:
        world = self.world
        world.room -= node == HOME and not evicting
        try:
            return self._has_room(node) if world.room else False
        finally:
            world.room += node == HOME and not evicting

    def schedule(self, name: str, uid: str) -> None:
        world = self.world
        closed = world.dead | world.silent | world.pressed | world.cordoned
        body = world.api.objects["pods"].get(name)
        pending = body is not None and body["metadata"]["uid"] == uid and not body["spec"].get("nodeName")
        room = any(self.has_room(n) for n in world.nodes if n not in closed)
        if pending and not room and HOME not in closed and self.has_room(HOME, evicting=True):
            raise Violation(17, f"the scheduler evicts other-0 for {name}")
        self._schedule(name, uid)
