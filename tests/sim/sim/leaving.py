"""A worker that has to leave never ends: its node dies, or its kubelet cannot end it. Nothing waits for it beyond its
deadline without naming it."""

from __future__ import annotations

from datetime import datetime

from elastrain_operator import clock as operator_clock
from sim.apiserver import Body
from sim.invariants import Invariants, Violation
from sim.run import _until, quiet
from sim.world import World

BEGIN, LASTS, LOOK = 25.0, 150.0, 1.0
DEADLINE = 40.0
"""Seconds from a deletion until a pod is overdue: its grace of 10 s and 30 s."""
SLACK = 5.0
WAITS = {"Draining", "RollingOut"}
"""Reasons of conditions that wait for workers that leave."""


def hung(seed: int) -> set[str]:
    """Run the world of ``seed``; returns the types of the conditions that name a pod, or ``Drained`` if a suspension
    has ended beside it. Raises ``Violation``."""
    with quiet():
        world = World(seed)
        operator_clock.now = world.time_of_day
        invariants = Invariants(world)
        _until(world, invariants, BEGIN)
        _hang(world)
        found: set[str] = set()
        while world.clock.now < BEGIN + LASTS:
            _until(world, invariants, world.clock.now + LOOK)
            found |= _named(world)
        return found


def _hang(world: World) -> None:
    """All pods of one node never end, while the job is suspended, shrinks or gets another template."""
    bound = sorted({p["spec"]["nodeName"] for p in world.api.objects["pods"].values() if p["spec"].get("nodeName")})
    if not bound or world.body is None:
        return
    node = world.nodes[world.rng.choice(bound)]
    if dies := world.rng.random() < 0.5:
        node.die()
    for container in [] if dies else node.containers.values():
        container._remove = lambda: None  # type: ignore[method-assign]
        container.report_end = lambda *_: None  # type: ignore[method-assign]
    spec = world.body["spec"]
    template = {**spec["template"], "metadata": {"labels": {"version": "2"}}}
    changes = [{"suspend": True}, {"template": template}, {"minReplicas": 1, "replicas": 1}]
    world.change_spec(**world.rng.choice(changes))


def _named(world: World) -> set[str]:
    """The conditions that name an overdue pod. Raises ``Violation`` if one that waits for it does not."""
    body, late = world.body, [p for p in world.api.objects["pods"].values() if _is_late(world, p)]
    if body is None or not late:
        return set()
    found = set()
    for condition in body.get("status", {}).get("conditions", ()):
        names = "overdue: pod " in condition["message"]
        if condition["reason"] in WAITS and condition["status"] == "False" and not names:
            raise Violation(8, f"{condition['type']} waits for {late[0]['metadata']['name']}: {condition['message']}")
        if names:
            found.add("Drained" if condition["reason"] == "Drained" else condition["type"])
    return found


def _is_late(world: World, pod: Body) -> bool:
    deleted = pod["metadata"].get("deletionTimestamp")
    phase = pod.get("status", {}).get("phase")
    if deleted is None or phase in ("Failed", "Succeeded"):
        return False
    age = (datetime.fromisoformat(world.wire_time("api")) - datetime.fromisoformat(deleted)).total_seconds()
    return age > DEADLINE + SLACK
