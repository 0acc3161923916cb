"""Kubernetes' ResourceQuotas, as far as they bound workers. Pure; parses raw objects.

The API server charges a pod to all quotas of its namespace whose scopes it has. It compares with the ``status`` of a
quota; the quota controller lags behind deleted pods by seconds. What quotas count of claims that Kubernetes makes after
a pod, of volumes and devices, is not read: such a pod stays Pending, and the grant expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastrain_operator.allocation.resources import charged
from elastrain_operator.allocation.snapshot import Job, PodCharge, QuotaRoom
from elastrain_operator.raw import mapping, objects, text

_OF_PODS = ("pods", "count/pods", "cpu", "memory", "ephemeral-storage")
_PREFIXES = ("requests.", "limits.", "hugepages-")


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota."""

    namespace: str
    room: QuotaRoom
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Scope, operator, values: a pod needs all of them."""


def quota(body: Mapping[str, Any]) -> Quota | None:
    """None: it bounds no pods, or the quota controller has not counted yet."""
    meta, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    hard, used = mapping(status.get("hard")), mapping(status.get("used"))
    most: dict[str, int] = {}
    left: dict[str, int] = {}
    for resource, limit in hard.items():
        if not _bounds_pods(resource):
            continue
        try:
            most[resource] = charged(resource, str(limit))
            left[resource] = most[resource] - charged(resource, str(used.get(resource, "0")))
        except ValueError:
            continue
    if not most:
        return None
    namespace = text(meta.get("namespace"))
    key = f"{namespace}/{text(meta.get('name'))}"
    return Quota(namespace, QuotaRoom(key, tuple(sorted(most.items())), tuple(sorted(left.items()))), _scopes(spec))


def _bounds_pods(resource: str) -> bool:
    return resource in _OF_PODS or resource.startswith(_PREFIXES)


def _scopes(spec: Mapping[str, Any]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    named: list[tuple[str, str, tuple[str, ...]]] = [(str(scope), "Exists", ()) for scope in spec.get("scopes") or ()]
    for each in objects(mapping(spec.get("scopeSelector")).get("matchExpressions")):
        values = tuple(str(v) for v in each.get("values") or ())
        named.append((text(each.get("scopeName")), text(each.get("operator")) or "Exists", values))
    return tuple(named)


def applies(found: Quota, pod: PodCharge) -> bool:
    """Whether a pod is charged to the quota. A scope that is not known here counts as one that the pod does not have:
    the API server's refusal shows it."""
    return all(_has(pod, scope, operator, values) for scope, operator, values in found.scopes)


def _has(pod: PodCharge, scope: str, operator: str, values: tuple[str, ...]) -> bool:
    if scope != "PriorityClass":
        return operator == "Exists" and scope in pod.scopes
    name = next((s.partition("=")[2] for s in pod.scopes if s.startswith("PriorityClass=")), "")
    match operator:
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
        case "In":
            return name in values
        case "NotIn":
            return name not in values
    return False


def bounded(job: Job, pod: PodCharge, quotas: Iterable[Quota]) -> Job:
    """``job`` with the quotas of its namespace (``quotas``) that its pods are charged to."""
    mine = [q.room for q in quotas if applies(q, pod)]
    if not mine or not pod.amounts:
        return job
    room = min((_pods(q, pod) for q in mine), default=None)
    existing = len(job.workers)
    return replace(
        job,
        charge=pod.amounts,
        quotas=tuple(sorted(q.key for q in mine)),
        quota_room=None if room is None else existing + room,
    )


def _pods(room: QuotaRoom, pod: PodCharge) -> int:
    """Pods that fit into what is left; of a quota that counts nothing of such a pod, more than any cluster runs."""
    left = dict(room.left)
    return min((max(left[r], 0) // amount for r, amount in pod.amounts if r in left), default=2**31)
