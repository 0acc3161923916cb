"""Kubernetes quantities and the resource requests of pods. Pure; parses raw objects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

from elastrain_operator.allocation.snapshot import PODS, Amounts
from elastrain_operator.raw import mapping, objects

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIX = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_LARGEST_EXPONENT = 40
"""Larger quantities are refused: no cluster has them, and the integer would need unbounded memory."""


@lru_cache(maxsize=4096)
def quantity(resource: str, text: str) -> int:
    """A quantity as an integer: CPU in millicores, everything else in units; fractions are rounded up.

    Raises ``ValueError`` naming the text.
    """
    value = _value(text)
    scaled = value * 1000 if resource == "cpu" else value
    return int(scaled.to_integral_value(rounding=ROUND_CEILING))


def _value(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text.strip())
    exponent = int(match[2] or 0) if match else 0
    if match is None or abs(exponent) > _LARGEST_EXPONENT or len(text) > _LARGEST_EXPONENT:
        raise ValueError(f"{text!r} is not a quantity: write a number with a suffix such as 500m, 2, 16Gi")
    return Decimal(match[1]).scaleb(exponent) * _SUFFIX[match[3] or ""]


def amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """A resource list, such as a node's ``allocatable``, without unreadable entries."""
    found = {}
    for resource, text in (raw or {}).items():
        try:
            found[str(resource)] = quantity(str(resource), str(text))
        except ValueError:
            continue
    return found


def demand(pod_spec: Mapping[str, Any]) -> Amounts:
    """A pod's resource requests as kube-scheduler counts them, plus its overhead. A missing request equals the limit:
    also one of the pod as a whole, unless its containers request that resource.
    """
    requests = {**_as_a_whole(pod_spec, "limits"), **_total(pod_spec, _requests), **_as_a_whole(pod_spec, "requests")}
    total = _sum([requests, amounts(mapping(pod_spec.get("overhead")))])
    return frozen({**total, PODS: 1})


CLAIM = "resourceclaimtemplate/"
"""Begins the name under which a demand has claims of a template (``namespace/name``), until the allocator's books say
which devices those are (:mod:`elastrain_operator.devices.books`)."""


def with_claims(amount: Amounts, pod_spec: Mapping[str, Any], namespace: str) -> Amounts:
    """A pod's demand with one claim for each of its ``resourceClaims`` that has a template."""
    found = [c.get("resourceClaimTemplateName") for c in objects(pod_spec.get("resourceClaims"))]
    names = [f"{CLAIM}{namespace}/{name}" for name in found if isinstance(name, str)]
    return frozen({**dict(amount), **Counter(names)}) if names else amount


def _total(pod_spec: Mapping[str, Any], of: Callable[[Mapping[str, Any]], dict[str, int]]) -> dict[str, int]:
    """Requests or limits of a pod's containers, from those ``of`` each: its containers together with its restartable
    init containers (sidecars), at least each other init container together with the sidecars before it.
    """
    beside: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in objects(pod_spec.get("initContainers")):
        needs = _sum([beside, of(container)])
        if container.get("restartPolicy") == "Always":
            beside = needs
        starting = _greatest(starting, needs)
    running = _sum([beside, *map(of, objects(pod_spec.get("containers")))])
    return _greatest(running, starting)


def _as_a_whole(pod_spec: Mapping[str, Any], which: str) -> dict[str, int]:
    """The pod's own ``requests`` or ``limits``, which stand for those of its containers."""
    own = amounts(mapping(mapping(pod_spec.get("resources")).get(which)))
    return {r: a for r, a in own.items() if r in ("cpu", "memory") or r.startswith("hugepages-")}


def _whole_limits(pod_spec: Mapping[str, Any]) -> dict[str, int]:
    return {**_total(pod_spec, _limits), **_as_a_whole(pod_spec, "limits")}


_BOTH = ("cpu", "memory", "ephemeral-storage")
"""Native resources that a ResourceQuota also names without ``requests.``."""


def charge(pod_spec: Mapping[str, Any]) -> Amounts:
    """What ResourceQuotas count of a pod, by the names of their resources: ``pods``, ``requests.nvidia.com/gpu``,
    ``limits.memory``, ..."""
    found = {PODS: 1, f"count/{PODS}": 1}
    for resource, amount in demand(pod_spec):
        if resource != PODS:
            found[f"requests.{resource}"] = amount
            if resource in _BOTH or resource.startswith("hugepages-"):
                found[resource] = amount
    limits, overhead = _whole_limits(pod_spec), amounts(mapping(pod_spec.get("overhead")))
    limits = {r: a + overhead.get(r, 0) for r, a in limits.items()}
    return frozen({**found, **{f"limits.{r}": a for r, a in limits.items() if r in _BOTH}})


def charged(resource: str, text: str) -> int:
    """An amount of a resource as a ResourceQuota names it. Raises ``ValueError``."""
    return quantity(resource.removeprefix("requests.").removeprefix("limits."), text)


def scopes(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """The scopes of ResourceQuotas that a pod belongs to; ``PriorityClass=NAME`` names its class."""
    ends = "Terminating" if pod_spec.get("activeDeadlineSeconds") is not None else "NotTerminating"
    named = {r for r, _ in demand(pod_spec)} | _whole_limits(pod_spec).keys()
    quality = "NotBestEffort" if named & {"cpu", "memory"} else "BestEffort"
    return frozenset({ends, quality, f"PriorityClass={pod_spec.get('priorityClassName') or ''}"})


def frozen(amount: Mapping[str, int]) -> Amounts:
    """Sorted by name, without zeros; equal amounts are one object, since thousands of pods request the same."""
    return _shared(tuple(sorted((r, a) for r, a in amount.items() if a > 0)))


@lru_cache(maxsize=1024)
def _shared(amount: Amounts) -> Amounts:
    return amount


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = mapping(container.get("resources"))
    return amounts({**mapping(resources.get("limits")), **mapping(resources.get("requests"))})


def _limits(container: Mapping[str, Any]) -> dict[str, int]:
    return amounts(mapping(mapping(container.get("resources")).get("limits")))


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _greatest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {r: max(one.get(r, 0), other.get(r, 0)) for r in {*one, *other}}
