"""The cluster's capacity for workers: nodes, what other pods hold on them, and the values of priority classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.allocation import resources
from elastrain_operator.allocation.snapshot import Held, Node
from elastrain_operator.cluster import nodes, quotas
from elastrain_operator.cluster.nodes import NodeFacts
from elastrain_operator.cluster.quotas import Quota
from elastrain_resource.reflector import REFUSED_SECONDS, Reflector, Source

# The claims of the jobs contain the workers.
_OTHERS = MappingProxyType(
    {
        "labelSelector": f"!{names.LABEL_JOB_UID}",
        "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    }
)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class of the cluster."""

    name: str
    value: int
    is_default: bool
    preempts: bool


class Inventory:
    """Kept current by four watches; that of pods shows bound pods that are not workers."""

    def __init__(
        self,
        source: Source,
        on_change: Callable[[], None],
        is_worker: Callable[[Mapping[str, Any]], bool] = lambda _: False,
        on_quota: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``is_worker`` is called with each pod without the workers' label, and counts it if it is a worker.
        ``on_quota``: with the namespace of a changed ResourceQuota."""
        self._on_change = on_change
        self._is_worker = is_worker
        self._closed: dict[str, dict[nodes.Cause, datetime]] = {}
        hooks: dict[str, Any] = {"on_change": lambda *_: on_change(), "on_problem": on_change}
        node_hooks: dict[str, Any] = {**hooks, "on_change": self._node_changed}
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        self._nodes = Reflector(source, "/api/v1/nodes", "nodes", parse=nodes.node, **node_hooks)
        self._others = Reflector(source, "/api/v1/pods", "pods", _OTHERS, parse=self._other, **hooks)
        self._classes = Reflector(source, classes, "priority classes", parse=_priority_class, **hooks)
        # Without the right to read them, quotas are known by the API server's refusals only.
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._on_quota = on_quota
        self._limits = Reflector(
            source, "/api/v1/resourcequotas", "resource quotas", parse=quotas.quota, on_change=self._quota_changed
        )
        self._all: tuple[Reflector[Any], ...] = (self._nodes, self._others, self._classes)

    def _other(self, body: Mapping[str, Any]) -> Held | None:
        return None if self._is_worker(body) else _held(body)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(kept.run() for kept in self._all), self._limits.run())

    @property
    def problem(self) -> str | None:
        """Why the cluster is unknown; None: it is known, in an outage as it was before."""
        for kept in self._all:
            text = kept.problem.text if kept.problem else f"the {kept.what} of the cluster are not listed yet"
            if _is_denied(kept):
                return f"{text} (the API server has refused each attempt for {REFUSED_SECONDS:g} s)"
            if not kept.listed:
                return text
        return None

    @property
    def looks(self) -> bool:
        """The cluster is unknown only because its first lists are under way."""
        return any(not kept.listed for kept in self._all) and not any(kept.problem for kept in self._all)

    @property
    def denied(self) -> bool:
        """The cluster stays unknown: a permission is missing."""
        return any(map(_is_denied, self._all))

    def nodes(self, now: datetime) -> tuple[Node, ...]:
        """Nodes by name, with the room that other pods leave for workers."""
        used: dict[str, dict[str, int]] = {}
        for held in self._others.values.values():
            taken = used.setdefault(held.node, {})
            for resource, amount in held.demand:
                taken[resource] = taken.get(resource, 0) + amount
        facts = sorted(self._nodes.values.values(), key=lambda n: n.name)
        if not nodes.believed(facts):
            facts = [replace(n, sick=()) for n in facts]
        return tuple(node_at(n, used.get(n.name, {}), self._closed.get(n.name, {}), now) for n in facts)

    def next_change(self, now: datetime) -> float | None:
        """Seconds until time alone changes a node: a cordon or taint has then lasted; None: it does not."""
        return nodes.next_change(self._closed.values(), now)

    def priority(self, name: str) -> int:
        """Value of a priority class; without a name that of the default class, or 0 if there is none."""
        found = self._class(name)
        return found.value if found else 0

    def preempts(self, name: str) -> bool:
        """Whether the scheduler evicts others for pods of a priority class."""
        found = self._class(name)
        return found is None or found.preempts

    def quotas(self, namespace: str) -> Collection[Quota]:
        """The ResourceQuotas of a namespace; empty: none, or unknown."""
        return self._quotas.get(namespace, {}).values()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _class(self, name: str) -> PriorityClass | None:
        return next((c for c in self._classes.values.values() if (c.name == name if name else c.is_default)), None)

    def _quota_changed(self, key: str, _before: Quota | None, after: Quota | None) -> None:
        namespace = key.partition("/")[0]
        there = self._quotas.setdefault(namespace, {})
        there.pop(key, None)
        if after is not None:
            there[key] = after
        self._on_quota(namespace)

    def _node_changed(self, _key: str, before: NodeFacts | None, after: NodeFacts | None) -> None:
        facts = after or before
        assert facts is not None, "a change has a value before or after it"
        closed = nodes.update(self._closed.pop(facts.name, {}), after, clock.now())
        if closed:
            self._closed[facts.name] = closed
        self._on_change()


def _is_denied(kept: Reflector[Any]) -> bool:
    return kept.problem is not None and kept.problem.lasting


def node_at(facts: NodeFacts, used: Mapping[str, int], closed: nodes.Closed, now: datetime) -> Node:
    """A node with the room that other pods (``used``) leave; ``closed``: since when it has been closed to new pods."""
    return Node(
        name=facts.name,
        room={r: amount - used.get(r, 0) for r, amount in facts.allocatable.items()},
        labels=facts.labels,
        taints=nodes.taints_at(facts, closed, now),
        ready=facts.ready,
        cordoned=facts.cordoned,
        cordon_passing=facts.cordoned and not nodes.cordon_lasts(closed, now),
        going=bool(facts.going),
        sick=bool(facts.sick),
        sick_passing=bool(facts.sick) and not nodes.sickness_lasts(facts, closed, now),
        closed_by=nodes.why_closed(facts),
    )


def _held(body: Mapping[str, Any]) -> Held | None:
    """What a bound pod that is not a worker holds."""
    spec = body.get("spec") or {}
    return Held(spec["nodeName"], resources.demand(spec)) if spec.get("nodeName") else None


def _priority_class(body: Mapping[str, Any]) -> PriorityClass:
    name, value = body["metadata"]["name"], int(body.get("value") or 0)
    return PriorityClass(name, value, bool(body.get("globalDefault")), body.get("preemptionPolicy") != "Never")
