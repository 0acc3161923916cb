"""Raw objects of ``resource.k8s.io/v1`` → the allocator's devices, kinds and claims. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastrain_operator.allocation.resources import quantity
from elastrain_operator.allocation.snapshot import Taint, Toleration
from elastrain_operator.devices.books import Counters, Device, DeviceKind, Id, Published, Taken, Wants
from elastrain_operator.devices.selectors import NotCounted, Value, parse
from elastrain_operator.raw import Raw, mapping, number, objects, text

MOST_REQUESTS = 16
"""Requests of one claim that are counted."""
MOST_SELECTORS = 4000
"""Characters of the selectors of one claim that are kept: tenants write them, and their number is not bounded."""
IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Begins the name of the extended resource by which containers ask for devices of a class without a claim."""


@dataclass(frozen=True)
class Slice:
    """One ResourceSlice."""

    pool: tuple[str, str]
    """Driver and name."""
    generation: int
    of: int
    """Slices that the pool has in this generation."""
    devices: tuple[Device, ...]
    """Those of no one node have none in ``node``."""
    counters: Counters


@dataclass(frozen=True)
class DeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...]
    extended: str = ""
    """The extended resource that it serves (``extendedResourceName``); empty: none but :data:`IMPLICIT`."""


@dataclass(frozen=True)
class DeviceRequest:
    """What one request of a claim template asks for."""

    device_class: str
    selectors: tuple[str, ...]
    count: int
    tolerations: tuple[Toleration, ...]


Template = tuple[DeviceRequest, ...] | NotCounted


def slice_of(body: Raw) -> Slice | None:
    """A slice and its devices. None: it has no pool."""
    spec = mapping(body.get("spec"))
    pool, driver = mapping(spec.get("pool")), text(spec.get("driver"))
    if not (driver and pool.get("name")):
        return None
    own = (driver, text(pool.get("name")))
    devices = [
        _device(d, own, text(spec.get("nodeName")) or text(d.get("nodeName"))) for d in objects(spec.get("devices"))
    ]
    counters = {
        (text(c.get("name")), str(key)): amount
        for c in objects(spec.get("sharedCounters"))
        for key, amount in _amounts(mapping(c.get("counters"))).items()
    }
    return Slice(
        own, number(pool.get("generation")) or 0, number(pool.get("resourceSliceCount")) or 1, tuple(devices), counters
    )


def published(slices: Iterable[Slice]) -> Published:
    """The devices of all complete pools: of a pool that its driver is just rewriting the scheduler allocates
    nothing."""
    pools: dict[tuple[str, str], list[Slice]] = {}
    for found in slices:
        there = pools.setdefault(found.pool, [])
        if there and there[0].generation != found.generation:
            if there[0].generation > found.generation:
                continue
            there.clear()
        there.append(found)
    whole = {pool: there for pool, there in pools.items() if len(there) == there[0].of}
    budgets = {pool: {k: v for s in there for k, v in s.counters.items()} for pool, there in whole.items()}
    devices = tuple(d for there in whole.values() for s in there for d in s.devices)
    return Published(devices, {pool: counters for pool, counters in budgets.items() if counters})


Mild = tuple[Id, str, str]
"""A ``NoSchedule`` taint of a device: the device, key and value. Running pods keep the device."""


def mild(device: Device) -> list[Mild]:
    """The mild taints of a device."""
    return [(device.id, t.key, t.value) for t in device.taints if t.effect == "NoSchedule"]


def at_present(found: Published, lasting: Collection[Mild]) -> Published:
    """The devices with those of their mild taints marked that have not lasted long enough to move workers."""

    def seen(device: Device, taint: Taint) -> Taint:
        passes = taint.effect == "NoSchedule" and (device.id, taint.key, taint.value) not in lasting
        return taint.as_passing() if passes else taint

    marked = (replace(d, taints=tuple(seen(d, t) for t in d.taints)) if d.taints else d for d in found.devices)
    return Published(tuple(marked), found.budgets)


def device_class(body: Raw) -> DeviceClass:
    """A DeviceClass."""
    spec = mapping(body.get("spec"))
    return DeviceClass(str(body["metadata"]["name"]), _selectors(spec), text(spec.get("extendedResourceName")))


def template(body: Raw) -> Template:
    """What claims of a ResourceClaimTemplate ask for, or why it is not counted."""
    devices = mapping(mapping(mapping(body.get("spec")).get("spec")).get("devices"))
    requests = objects(devices.get("requests"))
    try:
        if len(requests) > MOST_REQUESTS:
            raise NotCounted(f"more than {MOST_REQUESTS} requests")
        found = tuple(_request(r) for r in requests)
        if sum(len(s) for r in found for s in r.selectors) > MOST_SELECTORS:
            raise NotCounted(f"selectors of more than {MOST_SELECTORS} characters")
        if devices.get("constraints") and sum(r.count for r in found) > 1:
            raise NotCounted("constraints between devices")
    except NotCounted as error:
        return error
    return found


def wants(requests: Template, classes: Mapping[str, DeviceClass]) -> Wants | NotCounted:
    """Kinds of devices that such a claim asks for, each with its number, or why that is not counted."""
    if isinstance(requests, NotCounted):
        return requests
    total: dict[DeviceKind, int] = {}
    try:
        for request in requests:
            kind = _kind(request, classes)
            total[kind] = total.get(kind, 0) + request.count
    except NotCounted as error:
        return error
    return total


def extended(resource: str, classes: Mapping[str, DeviceClass]) -> Wants | NotCounted | None:
    """What one of an extended resource asks for if a class serves it; None: no class does."""
    serving = [c.name for c in classes.values() if resource in (c.extended, IMPLICIT + c.name)]
    # The scheduler takes the class that was made last: of several, which one is not known here.
    if len(serving) > 1:
        return NotCounted(f"{resource}, which several DeviceClasses serve")
    return wants((DeviceRequest(serving[0], (), 1, ()),), classes) if serving else None


def taken(body: Raw) -> Taken | None:
    """What a ResourceClaim holds; None: nothing."""
    meta, status = mapping(body.get("metadata")), mapping(body.get("status"))
    results = objects(mapping(mapping(status.get("allocation")).get("devices")).get("results"))
    devices: dict[Id, tuple[Toleration, ...]] = {
        (text(r.get("driver")), text(r.get("pool")), text(r.get("device"))): _tolerations(r)
        for r in results
        if not r.get("adminAccess")
    }
    users = [
        *objects(status.get("reservedFor")),
        *(o for o in objects(meta.get("ownerReferences")) if o.get("kind") == "Pod"),
    ]
    return Taken(devices, frozenset(text(u.get("uid")) for u in users)) if devices else None


# ---- inside ----------------------------------------------------------------------------------------------------------
def _device(body: Raw, pool: tuple[str, str], node: str) -> Device:
    consumes = {
        (text(c.get("counterSet")), key): amount
        for c in objects(body.get("consumesCounters"))
        for key, amount in _amounts(mapping(c.get("counters"))).items()
    }
    attributes = {_full(pool[0], k): _value(raw) for k, raw in mapping(body.get("attributes")).items()}
    taints = (
        Taint(text(t.get("key")), text(t.get("value")), text(t.get("effect"))) for t in objects(body.get("taints"))
    )
    return Device(
        id=(*pool, text(body.get("name"))),
        node=node,
        attributes={k: value for k, value in attributes.items() if value is not None},
        capacity={_full(pool[0], k): amount for k, amount in _amounts(mapping(body.get("capacity"))).items()},
        consumes=consumes,
        taints=tuple(taints),
        is_shared=bool(body.get("allowMultipleAllocations")),
    )


def _full(driver: str, name: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _value(raw: object) -> Value | None:
    """An attribute; a version is none, since CEL compares it by functions alone."""
    found = mapping(raw)
    return next((found[k] for k in ("string", "int", "bool") if isinstance(found.get(k), str | int)), None)


def _amounts(raw: Mapping[str, Any]) -> dict[str, int]:
    """Quantities by name, without unreadable ones."""
    found = {}
    for key, body in raw.items():
        try:
            found[str(key)] = quantity("", str(mapping(body).get("value")))
        except ValueError:
            continue
    return found


def _selectors(spec: Raw) -> tuple[str, ...]:
    return tuple(str(mapping(s.get("cel")).get("expression") or "") for s in objects(spec.get("selectors")))


def _request(body: Raw) -> DeviceRequest:
    exactly = mapping(body.get("exactly"))
    if not exactly:
        raise NotCounted("a list of alternatives (firstAvailable)")
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise NotCounted(f"allocationMode {text(exactly.get('allocationMode'))}")
    if exactly.get("adminAccess"):
        raise NotCounted("adminAccess")
    if exactly.get("capacity"):
        raise NotCounted("a part of a device's capacity")
    count = number(exactly.get("count"))
    return DeviceRequest(
        text(exactly.get("deviceClassName")), _selectors(exactly), 1 if count is None else count, _tolerations(exactly)
    )


def _tolerations(body: Raw) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            text(t.get("key")), text(t.get("operator")) or "Equal", text(t.get("value")), text(t.get("effect")),
            t.get("tolerationSeconds") is not None,
        )
        for t in objects(body.get("tolerations"))
    )  # fmt: skip


def _kind(request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> DeviceKind:
    known = classes.get(request.device_class)
    if known is None:
        raise NotCounted(f"a DeviceClass that does not exist: {request.device_class}")
    tests = tuple(t for s in (*known.selectors, *request.selectors) for t in parse(s))
    own = repr((request.selectors, request.tolerations))
    is_bare = not (request.selectors or request.tolerations)
    mark = "" if is_bare else f"#{hashlib.sha256(own.encode()).hexdigest()[:6]}"
    return DeviceKind(f"deviceclass/{request.device_class}{mark}", tests, request.tolerations)
