"""The cluster's capacity for workers: nodes, what other pods hold on them, and the values of priority classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from elastrain.api import names
from elastrain.reflector import Reflector, Source
from elastrain_operator.allocation.model import Held, Node
from elastrain_operator.observe import nodes, resources

# The claims of the jobs contain the workers. (`!=` includes pods without the label.)
_OTHERS = MappingProxyType(
    {
        "labelSelector": f"{names.LABEL_MANAGED_BY}!={names.MANAGED_BY}",
        "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    }
)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class of the cluster."""

    name: str
    value: int
    is_default: bool


class Inventory:
    """Kept current by three watches; that of pods shows bound pods that are not workers."""

    def __init__(self, source: Source, on_change: Callable[[], None]) -> None:
        told: dict[str, Any] = {"on_change": lambda *_: on_change(), "on_problem": on_change}
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        self._nodes = Reflector(source, "/api/v1/nodes", "nodes", parse=nodes.node, **told)
        self._others = Reflector(source, "/api/v1/pods", "pods", _OTHERS, parse=_held, **told)
        self._classes = Reflector(source, classes, "priority classes", parse=_priority_class, **told)
        self._all: tuple[Reflector[Any], ...] = (self._nodes, self._others, self._classes)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(kept.run() for kept in self._all))

    @property
    def problem(self) -> str | None:
        """Why the cluster is unknown; None: it is known, in an outage as it was before."""
        for kept in self._all:
            if not kept.listed or (kept.problem and kept.problem.denied):
                return kept.problem.text if kept.problem else f"the {kept.what} of the cluster are not listed yet"
        return None

    @property
    def denied(self) -> bool:
        """The cluster stays unknown: a permission is missing."""
        return any(kept.problem and kept.problem.denied for kept in self._all)

    def nodes(self) -> tuple[Node, ...]:
        """Nodes by name, with the room that other pods leave for workers."""
        used: dict[str, dict[str, int]] = {}
        for held in self._others.values.values():
            taken = used.setdefault(held.node, {})
            for resource, amount in held.demand:
                taken[resource] = taken.get(resource, 0) + amount
        facts = sorted(self._nodes.values.values(), key=lambda n: n.name)
        return tuple(_node(n, used.get(n.name, {})) for n in facts)

    def priority(self, name: str) -> int:
        """Value of a priority class; without a name that of the default class, or 0 if there is none."""
        classes = self._classes.values.values()
        if name:
            return next((c.value for c in classes if c.name == name), 0)
        return next((c.value for c in classes if c.is_default), 0)


def _node(facts: nodes.NodeFacts, used: Mapping[str, int]) -> Node:
    return Node(
        name=facts.name,
        room={r: amount - used.get(r, 0) for r, amount in facts.allocatable.items()},
        labels=facts.labels,
        taints=facts.taints,
        ready=facts.ready,
        cordoned=facts.cordoned,
        going=facts.going,
    )


def _held(body: Mapping[str, Any]) -> Held | None:
    """What a bound pod that is not a worker holds."""
    spec = body.get("spec") or {}
    return Held(spec["nodeName"], resources.demand(spec)) if spec.get("nodeName") else None


def _priority_class(body: Mapping[str, Any]) -> PriorityClass:
    return PriorityClass(body["metadata"]["name"], int(body.get("value") or 0), bool(body.get("globalDefault")))
