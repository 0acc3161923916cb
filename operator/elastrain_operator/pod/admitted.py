"""What admission has made of a pod: the books are kept by it, not by the template. Pure.

Admission plugins, policies and webhooks add overhead, default requests, sidecars, selectors, tolerations and priorities
(RuntimeClass, LimitRange, namespaces' node selectors). A dry run of a creation returns the pod with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from elastrain_operator.allocation.explanations import amount
from elastrain_operator.allocation.resources import charge, demand, scopes
from elastrain_operator.allocation.snapshot import PodCharge, WorkerShape
from elastrain_operator.pod.shape import DEFAULT_SCHEDULER, of_pod, unknown
from elastrain_operator.raw import Raw, mapping, number, objects, text

LASTS = timedelta(hours=1)
"""How long an answer counts: policies change, and a job may wait for days."""
_DEFAULT_TOLERATIONS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Kubernetes adds them to each pod, for 300 s: they open no node to it."""
_AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The API server's answer to a dry run."""

    version: str
    """Of the template."""
    at: datetime
    shape: WorkerShape | None = None
    """None: admitted, but the answer does not show as what: a webhook has no dry runs, or the name is taken."""
    charge: PodCharge | None = None
    priority: int | None = None
    changes: tuple[str, ...] = ()
    """What admission has changed of what a worker needs, by field, for people."""
    unknown: tuple[str, ...] = ()
    """Constraints of that pod that the allocator does not know, for messages."""

    def is_recent(self, now: datetime) -> bool:
        """Whether workers of other jobs may leave by this answer."""
        return now - self.at < LASTS


def admitted(version: str, sent: Raw, got: Raw, now: datetime) -> Admitted:
    """``sent``: the manifest of a pod of that template; ``got``: the pod that the API server would have stored."""
    before, after = mapping(sent.get("spec")), mapping(got.get("spec"))
    try:
        shape, charged = of_pod(after), PodCharge(charge(after), scopes(after))
        constraints = unknown({"spec": after})
    except (AttributeError, KeyError, TypeError, ValueError):
        return Admitted(version, now)
    changes = tuple(_changes(before, after))
    return Admitted(version, now, shape, charged, number(after.get("priority")), changes, constraints)


def _changes(before: Raw, after: Raw) -> Iterator[str]:
    have, need = dict(demand(before)), dict(demand(after))
    for resource in sorted({*have, *need}):
        old, new = have.get(resource, 0), need.get(resource, 0)
        if old != new:
            yield f"{resource} {amount(resource, old)} → {amount(resource, new)}{_cause(resource, after)}"
    for key, value in sorted(mapping(after.get("nodeSelector")).items()):
        if mapping(before.get("nodeSelector")).get(key) != value:
            yield f"nodeSelector {key}={value}"
    if _inner(before) != _inner(after):
        yield "required node affinity"
    known = [dict(t) for t in objects(before.get("tolerations"))]
    added = [t for t in objects(after.get("tolerations")) if t.get("key") not in _DEFAULT_TOLERATIONS]
    yield from (f"toleration {text(t.get('key')) or '*'}" for t in added if dict(t) not in known)
    for field, usual in (("priorityClassName", None), ("runtimeClassName", None), ("schedulerName", DEFAULT_SCHEDULER)):
        was, became = (spec.get(field) or usual for spec in (before, after))
        if was != became:
            yield f"{field} {was or 'none'} → {became or 'none'}"
    sent = {*unknown({"spec": before}), "scheduler"}
    yield from (constraint for constraint in unknown({"spec": after}) if constraint not in sent)
    for field in ("containers", "initContainers"):
        names = {c.get("name") for c in objects(before.get(field))}
        yield from (f"{field}: {c.get('name')}" for c in objects(after.get(field)) if c.get("name") not in names)


def _cause(resource: str, after: Raw) -> str:
    return " (with overhead)" if resource in mapping(after.get("overhead")) else ""


def _inner(spec: Raw) -> Mapping[str, Any]:
    for field in _AFFINITY:
        spec = mapping(spec.get(field))
    return spec
