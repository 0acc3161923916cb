"""Faults of a cluster that others share: refusals of the API server, and what components of a newer version write."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastrain.etcd import Transaction
from elastrain_operator.kube.client import ApiError

if TYPE_CHECKING:
    from sim.world import World

WEBHOOK = 'failed calling webhook "a.example.com": timeout'
REFUSALS = (
    ApiError("create", 409, "Conflict", "the object has been modified", {"kind": "resourcequotas"}),
    ApiError("create", 429, "TooManyRequests", "slow down", {"retryAfterSeconds": 3}),
    ApiError("create", 500, "InternalError", WEBHOOK, {"causes": [{"message": WEBHOOK}]}),
)


def _refuse(world: World, kind: str) -> object:
    if kind in world.api.refuses:
        return False
    world.api.refuses[kind] = world.rng.choice(REFUSALS)

    def accept() -> None:
        del world.api.refuses[kind]

    return accept


def refuse_pods_for_a_while(world: World) -> object:
    return _refuse(world, "pods")


def refuse_events(world: World) -> object:
    return _refuse(world, "events")


def newer_member(world: World) -> object:
    """A member's record has a phase that this version does not know, or cannot be read."""
    members = sorted(key for key in world.etcd.kvs if key.startswith(world.job.members))
    if not members or not world.etcd.up:
        return False
    key = world.rng.choice(members)
    before = world.etcd.kvs[key]
    if not before.value.endswith(b"}"):
        return False  # it is unreadable already
    newer = json.dumps({**json.loads(before.value), "phase": "tuning", "rail": 7}).encode()
    shown = world.rng.choice((newer, b"{"))

    def write(value: bytes, expected: bytes) -> None:
        held = world.etcd.kvs.get(key)
        if world.etcd.up and held is not None and held.value == expected:  # its agent has not written since
            world.etcd.commit(Transaction((), ((key, value),), lease=held.lease))

    write(shown, before.value)
    return lambda: write(before.value, shown)


def newer_status(world: World) -> object:
    """A newer operator has written the status, and is rolled back."""
    body = world.body
    if body is None or not world.api.up:
        return False
    world.api.replace("jobs", body["metadata"]["name"], lambda b: {**b, "status": _newer(b.get("status", {}))})
    for operator in world.operators:
        if operator.process.alive:
            operator.kill(world.rng.uniform(0.5, 8.0))
    return None


def _newer(status: dict[str, Any]) -> dict[str, Any]:
    parts = {name: {**v, "newer": 1} if isinstance(v, dict) else v for name, v in status.items()}
    conditions = [*status.get("conditions", ()), {"type": "Archived", "status": "Deferred", "reason": "NotYet"}]
    unlike = {c["type"]: {**c, "newer": 1, "lastTransitionTime": c.get("lastTransitionTime", "")} for c in conditions}
    return {**parts, "conditions": list(unlike.values()), "newer": {"deep": [1]}}


KINDS: dict[str, Callable[[World], object]] = {
    f.__name__.replace("_", " "): f for f in (refuse_pods_for_a_while, refuse_events, newer_member, newer_status)
}
"""None of them touches a worker."""
