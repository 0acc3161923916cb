"""Devices that workers claim (dynamic resource allocation), as the allocator's resources. Pure.

A pod's template names claim templates; a claim template asks for devices of classes. Each such *kind* of device
becomes a resource: a node has as many as the scheduler could allocate there, and a worker needs what its claims ask
for. What cannot be counted (:class:`NotCounted`) takes no part in the decision and is named in the job's condition;
the scheduler alone decides about it.

The books never promise more than there is. A device of two kinds is charged to both; a partition is charged to all
kinds whose devices draw on the same counters, by the part of such a device that it may use up. The price: a mixture
of kinds can fit although the books say no. Source: ``resource.k8s.io/v1``; the allocator of
k8s.io/dynamic-resource-allocation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType

from elastrain_operator.allocation.match import HARD, untolerated
from elastrain_operator.allocation.resources import CLAIM, frozen
from elastrain_operator.allocation.snapshot import (
    Amounts,
    Job,
    Node,
    NodeRules,
    Snapshot,
    Taint,
    Toleration,
    Worker,
    WorkerShape,
)
from elastrain_operator.devices.selectors import NotCounted, Test, Value, holds

MOST_KINDS = 64
"""Kinds of devices that are counted at once: each is compared with each device of the cluster."""

Id = tuple[str, str, str]
"""Driver, pool and name of a device."""
Counters = Mapping[tuple[str, str], int]
"""Counter set and counter → amount."""


@dataclass(frozen=True)
class Device:
    """A device."""

    id: Id
    node: str
    """Empty: it belongs to no one node."""
    attributes: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    """By domain and name: ``gpu.example.com/model``."""
    capacity: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    consumes: Counters = field(default_factory=lambda: MappingProxyType({}))
    """Of the counters of its pool, which partitions of one device share."""
    taints: tuple[Taint, ...] = ()
    """Those that are too new to move workers are marked as passing."""
    is_shared: bool = False
    """Several claims may hold it at once."""


@dataclass(frozen=True)
class DeviceKind:
    """Devices that are interchangeable for a request."""

    resource: str
    """Its name in the books: ``deviceclass/gpu.example.com``."""
    tests: tuple[Test, ...]
    tolerations: tuple[Toleration, ...] = ()

    def takes(self, device: Device) -> bool:
        """Whether its selectors hold. Raises :class:`NotCounted`."""
        results: list[bool] = []
        failed: NotCounted | None = None
        for test in self.tests:
            try:
                results.append(holds(test, device.id[0], device.attributes, device.capacity))
            except NotCounted as error:
                failed = error
        if not all(results):
            return False  # as in CEL, where a false part outweighs an error
        if failed:
            raise failed
        if device.is_shared:
            raise NotCounted("devices that several claims share")
        return True


Wants = Mapping[DeviceKind, int]
"""Devices that the claims of one template ask for."""
ByNode = Mapping[str, tuple[Device, ...]]


@dataclass(frozen=True)
class Published:
    """What drivers publish of the cluster's devices."""

    devices: tuple[Device, ...] = ()
    budgets: Mapping[tuple[str, str], Counters] = field(default_factory=lambda: MappingProxyType({}))
    """Of pools with partitioned devices: (driver, pool) → the whole of its counters."""
    _matching: dict[DeviceKind, ByNode] = field(default_factory=dict, compare=False, repr=False)
    _charges: dict[tuple[DeviceKind, DeviceKind], int] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def by_node(self) -> ByNode:
        found: dict[str, list[Device]] = {}
        for device in self.devices:
            if device.node:
                found.setdefault(device.node, []).append(device)
        return {node: tuple(there) for node, there in found.items()}

    def matching(self, kind: DeviceKind) -> ByNode:
        """The devices of a kind by node. Raises :class:`NotCounted`."""
        if kind not in self._matching:
            if any(kind.takes(d) for d in self.devices if not d.node):
                raise NotCounted("devices that belong to no one node")
            found = {node: tuple(d for d in there if kind.takes(d)) for node, there in self.by_node.items()}
            self._matching[kind] = {node: there for node, there in found.items() if there}
        return self._matching[kind]

    def charge(self, kind: DeviceKind, other: DeviceKind) -> int:
        """How many devices of ``other`` one of ``kind`` may make impossible. Raises :class:`NotCounted`."""
        if kind == other:
            return 1
        if (kind, other) not in self._charges:
            these, those = self.matching(kind), self.matching(other)
            most = max((_takes_away(these[n], those[n]) for n in these.keys() & those.keys()), default=0)
            self._charges[kind, other] = most
        return self._charges[kind, other]


@dataclass(frozen=True)
class Taken:
    """Devices that a claim holds."""

    devices: Mapping[Id, tuple[Toleration, ...]]
    """With what the claim tolerates of each."""
    pods: frozenset[str]
    """UIDs of the pods that use it or for which it was made."""


@dataclass(frozen=True)
class Books:
    """All devices of the cluster, what claims hold of them, and what the templates of the jobs' claims ask for."""

    published: Published
    taken: tuple[Taken, ...] = ()
    templates: Mapping[str, Wants | NotCounted] = field(default_factory=lambda: MappingProxyType({}))
    """By ``namespace/name`` of the ResourceClaimTemplate."""
    extended: Mapping[str, Wants | NotCounted] = field(default_factory=lambda: MappingProxyType({}))
    """What one of each extended resource asks for that no node has and that a DeviceClass serves."""

    def wants_of(self, resource: str) -> Wants | NotCounted:
        """What one of a demand's resource asks for: a claim, or an extended resource of these."""
        if resource in self.extended:
            return self.extended[resource]
        return self.templates.get(resource.removeprefix(CLAIM), NotCounted("a template that does not exist"))

    def held_by(self, pods: Collection[str]) -> tuple[frozenset[Id], frozenset[Id]]:
        """The devices that these pods hold, and those that others hold."""
        known = frozenset(pods)
        own = frozenset(i for t in self.taken if t.pods & known for i in t.devices)
        return own, frozenset(i for t in self.taken for i in t.devices) - own


def resolve(snapshot: Snapshot, books: Books, workers: Collection[str]) -> Snapshot:
    """The snapshot with devices in place of claim templates. ``workers``: UIDs of the jobs' pods, whose devices are
    in the snapshot's demands; all other claims hold what is not there for them."""
    counted, reasons = _countable(snapshot, books)
    published = books.published
    kinds = list(dict.fromkeys(kind for wants in counted.values() for kind in wants))
    amounts: dict[str, Mapping[str, int]] = {claim: {} for claim in reasons}
    amounts |= {claim: _charged(wants, kinds, published) for claim, wants in counted.items()}
    own, taken = books.held_by(workers)
    ending = _ending(books, frozenset(workers))
    return replace(
        snapshot,
        nodes=tuple(_with_devices(n, published, kinds, own, taken) for n in snapshot.nodes),
        jobs=tuple(_job(j, amounts, reasons, ending) for j in snapshot.jobs),
        leaving=tuple(replace(h, demand=_resolved(h.demand, amounts)) for h in snapshot.leaving),
        reserved=tuple((_shape(kind, amounts), n) for kind, n in snapshot.reserved),
    )


def requested(snapshot: Snapshot) -> tuple[list[str], list[str]]:
    """The claims that workers of the snapshot have or would have; and the extended resources that they need and that no
    node has: a DeviceClass may serve them."""
    demanded = _demanded(snapshot)
    extended = (r for r in demanded if "/" in r and not r.startswith(CLAIM))
    unserved = [r for r in extended if not any(r in node.room for node in snapshot.nodes)]
    return [r for r in demanded if r.startswith(CLAIM)], unserved


def _demanded(snapshot: Snapshot) -> list[str]:
    demands = [j.kind.demand for j in snapshot.jobs] + [w.demand for j in snapshot.jobs for w in j.workers]
    demands += [h.demand for h in snapshot.leaving] + [kind.demand for kind, _ in snapshot.reserved]
    return list(dict.fromkeys(r for demand in demands for r, _ in demand))


def count(devices: Sequence[Device], budgets: Mapping[tuple[str, str], Counters], taken: Iterable[Device]) -> int:
    """How many of ``devices`` could be allocated beside those that are ``taken``: without counters all, with counters
    as many as fit if the largest are taken first, which no choice of the scheduler undercuts by an equal
    partition."""
    left = {(pool, counter): amount for pool, counters in budgets.items() for counter, amount in counters.items()}
    for device in taken:
        for counter, amount in device.consumes.items():
            left[device.id[:2], counter] = left.get((device.id[:2], counter), 0) - amount
    found = 0
    for device in sorted(devices, key=lambda d: (-sum(d.consumes.values()), d.id)):
        needs = [((device.id[:2], counter), amount) for counter, amount in device.consumes.items()]
        if all(left.get(key, 0) >= amount for key, amount in needs):
            found += 1
            for key, amount in needs:
                left[key] -= amount
    return found


# ---- inside ----------------------------------------------------------------------------------------------------------
def _countable(snapshot: Snapshot, books: Books) -> tuple[dict[str, Wants], dict[str, str]]:
    """What the claims ask for, and why the others are not counted. A namespace's first claims come first, so that no
    tenant uses up the number of kinds."""
    counted: dict[str, Wants] = {}
    reasons: dict[str, str] = {}
    claims_of: Counter[str] = Counter()
    order = []
    for claim in (r for r in _demanded(snapshot) if r.startswith(CLAIM) or r in books.extended):
        namespace = claim.removeprefix(CLAIM).partition("/")[0]
        claims_of[namespace] += 1
        order.append((claims_of[namespace], claim))
    kinds: set[DeviceKind] = set()
    for _, claim in sorted(order):
        wants = books.wants_of(claim)
        try:
            if isinstance(wants, NotCounted):
                raise wants
            if len(kinds | wants.keys()) > MOST_KINDS:
                raise NotCounted(f"more than {MOST_KINDS} kinds of devices at once")
            for kind in wants.keys() - kinds:
                books.published.matching(kind)
            kinds |= wants.keys()
            counted[claim] = wants
        except NotCounted as error:
            what = "resource claims" if claim.startswith(CLAIM) else claim
            reasons[claim] = f"{what} ({error})"
    return counted, reasons


def _takes_away(these: Sequence[Device], those: Sequence[Device]) -> int:
    """How many of ``those`` one of ``these`` may make impossible, on one node."""
    same = bool({d.id for d in these} & {d.id for d in those})
    drawn, needed = _consumptions(these), _consumptions(those)
    shares = (_ratio(a, b) for (p, a), (q, b) in product(drawn, needed) if p == q)
    return max(max(shares, default=0), int(same))


def _consumptions(devices: Iterable[Device]) -> list[tuple[tuple[str, str], Counters]]:
    """The different consumptions of counters, each with its pool."""
    found = {(d.id[:2], tuple(sorted(d.consumes.items()))) for d in devices if d.consumes}
    return [(pool, dict(counters)) for pool, counters in found]


def _ratio(drawn: Counters, needed: Counters) -> int:
    """Devices of the second consumption that one of the first uses up at most: of the counters that both draw on."""
    return max((-(-drawn[c] // needed[c]) for c in drawn.keys() & needed.keys() if needed[c]), default=0)


def _charged(wants: Wants, kinds: Iterable[DeviceKind], published: Published) -> Mapping[str, int]:
    """What the claims of a template take of each resource."""
    total: dict[str, int] = {}
    for (kind, number), other in product(wants.items(), kinds):
        total[other.resource] = total.get(other.resource, 0) + number * published.charge(kind, other)
    return total


def _with_devices(
    node: Node, published: Published, kinds: Sequence[DeviceKind], own: Collection[Id], taken: Collection[Id]
) -> Node:
    """The node with what it has of each kind for workers: with what they hold, without what others hold."""
    there = published.by_node.get(node.name, ())
    if not kinds or not there:
        return node
    others = [d for d in there if d.id in taken]
    room, pools = dict(node.room), {d.id[:2] for d in there}
    budgets = {pool: counters for pool, counters in published.budgets.items() if pool in pools}
    for kind in kinds:
        devices = (d for d in published.matching(kind).get(node.name, ()) if d.id not in taken)
        usable = [d for d in devices if d.id in own or not _keep_away(d.taints, kind.tolerations)]
        room[kind.resource] = count(usable, budgets, others)
    return replace(node, room=room)


def _keep_away(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> list[Taint]:
    """The taints of a device that keep a claim away from it."""
    return [t for t in untolerated(taints, NodeRules(tolerations=tolerations)) if t.effect in HARD]


def _ending(books: Books, workers: frozenset[str]) -> dict[str, str]:
    """Workers (UIDs) that should leave their devices, and why: a ``NoExecute`` taint that the claim does not tolerate,
    or such a ``NoSchedule`` taint that lasts. A claim that tolerates it, be it for seconds only, could get the same
    device again. Of ``NoSchedule`` taints, at most a third of the devices (or one) are believed, as with nodes: beyond
    that, the driver is taken to be at fault."""
    tainted = {d.id: d for d in books.published.devices if any(t.effect in HARD and not t.passing for t in d.taints)}
    mild = sum(all(t.effect != "NoExecute" for t in d.taints) for d in tainted.values())
    is_believed = mild <= max(len(books.published.devices) // 3, 1)
    found: dict[str, str] = {}
    for claim in books.taken:
        if not claim.pods & workers:
            continue
        for at, tolerations in claim.devices.items():
            lasting = [t for t in tainted[at].taints if not t.passing] if at in tainted else []
            ends = _keep_away((t for t in lasting if t.effect == "NoExecute"), tolerations)
            moved = _keep_away((t for t in lasting if t.effect == "NoSchedule" and is_believed), tolerations)
            for taint in (*ends, *moved)[:1]:
                found.update(dict.fromkeys(claim.pods, f"device {at[2]}: taint {taint.key}"))
    return found


def _job(
    job: Job, amounts: Mapping[str, Mapping[str, int]], reasons: Mapping[str, str], ending: Mapping[str, str]
) -> Job:
    unknown = [reasons[r] for r, _ in job.kind.demand if r in reasons]
    workers = tuple(_worker(w, amounts, ending) for w in job.workers)
    return replace(
        job, kind=_shape(job.kind, amounts), workers=workers, unknown=(*job.unknown, *dict.fromkeys(unknown))
    )


def _worker(worker: Worker, amounts: Mapping[str, Mapping[str, int]], ending: Mapping[str, str]) -> Worker:
    return replace(worker, demand=_resolved(worker.demand, amounts), ends=ending.get(worker.uid, ""))


def _shape(kind: WorkerShape, amounts: Mapping[str, Mapping[str, int]]) -> WorkerShape:
    return replace(kind, demand=_resolved(kind.demand, amounts))


def _resolved(demand: Amounts, amounts: Mapping[str, Mapping[str, int]]) -> Amounts:
    if not any(resource in amounts for resource, _ in demand):
        return demand
    total: dict[str, int] = {}
    for resource, number in demand:
        for name, amount in amounts.get(resource, {resource: 1}).items():
            total[name] = total.get(name, 0) + number * amount
    return frozen(total)
