"""Which pods count as workers, the replicas that they form, and the ordinals and places of new ones. Pure.

A replica is one worker, or a group of several that is created, drained and replaced as a whole. A worker's group and
its place there are labels of its pod. The other policies count replicas and need not distinguish the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from elastrain_operator.facts import Charge, Pod, Refusal, RefusalKind, Slot

BATCH = 500
"""Most pods created in one pass. The next pass follows when the watch has shown them, so that a job of two thousand
million workers meets its quota before it fills any memory."""


def active(pods: Iterable[Pod], leaving: Collection[str], silent: Collection[str]) -> tuple[Pod, ...]:
    """Pods that count as workers: not ended, terminating, ``leaving`` or ``silent`` (names)."""
    return tuple(
        p for p in pods if not p.ending and not p.terminating and p.name not in leaving and p.name not in silent
    )


def ordinals(
    missing: int, open_ordinals: Sequence[int], pods: Iterable[Pod], next_ordinal: int, refusal: Refusal | None = None
) -> tuple[int, ...]:
    """Ordinals for ``missing`` new pods (at most ``BATCH``): first those whose pod was refused, then new ones.

    An ordinal that has named a pod is never reused. If the status was lost, the existing pods show the highest one.
    Behind names that others have taken, ever more are skipped: any number of foreign pods costs a few attempts.
    """
    missing = min(missing, BATCH)
    taken_names = refusal.attempts if refusal is not None and refusal.kind is RefusalKind.NAME_TAKEN else 0
    first = max([next_ordinal, *(p.ordinal + 1 for p in pods)]) + 4 ** min(taken_names, 6) - 1
    taken = {p.ordinal for p in pods}
    again = [n for n in open_ordinals if n not in taken][:missing]
    return (*again, *range(first, first + missing - len(again)))


Replica = tuple[Pod, ...]


def of(workers: Iterable[Pod]) -> tuple[Replica, ...]:
    """The workers of each group. One that claims a place which another worker has is a group by itself."""
    found: dict[tuple[int | None, str], list[Pod]] = {}
    for pod in workers:
        key = (None, pod.name) if pod.slot is None else (pod.slot.group, "")
        if any(p.slot == pod.slot for p in found.get(key, ())):
            key = (None, pod.name)
        found.setdefault(key, []).append(pod)
    return tuple(map(tuple, found.values()))


def stand_ins(workers: Iterable[Pod], size: int, template: str = "") -> tuple[Pod, ...]:
    """One pod for each group, which is what all workers of the group are: started if all are, say. ``size``: workers of
    a group; a group that lacks one has not started. One whose template is not ``template`` stands for its group."""
    if size == 1:
        return tuple(workers)
    return tuple(_stand_in(group, size, template) for group in of(workers))


def _stand_in(group: Replica, size: int, template: str) -> Pod:
    whole = len(group) == size

    def last(pod: Pod) -> tuple[bool, bool, bool, int]:
        return (pod.template == template, pod.started, pod.ready, pod.ordinal)

    first = min(group, key=last)
    return replace(
        first,
        started=whole and all(p.started for p in group),
        ready=whole and all(p.ready for p in group),
        node=first.node if whole and all(p.node for p in group) else "",
        disruption=next((p.disruption for p in group if p.disruption), ""),
        trouble=next((p.trouble for p in group if p.trouble), None),
    )


def with_whole_replicas(chosen: Collection[Pod], workers: Sequence[Pod]) -> tuple[Pod, ...]:
    """The ``chosen`` workers and all others of their groups, in the order of the groups of ``chosen``."""
    names = {p.name: n for n, p in enumerate(chosen)}
    found = [
        (min(names[p.name] for p in group if p.name in names), group) for group in of(workers) if _has_any(group, names)
    ]
    return tuple(p for _, group in sorted(found, key=lambda f: f[0]) for p in group)


def slots(workers: Sequence[Pod], pods: Iterable[Pod], size: int, more: int) -> tuple[Slot, ...]:
    """Where new workers belong, at most ``BATCH``: first in groups of ``workers`` that lack one, then in ``more`` new
    groups.

    A new group's number is the smallest that none of ``pods`` has.
    """
    taken = {p.slot.group for p in pods if p.slot}
    free = (n for n in itertools.count() if n not in taken)
    new = (Slot(number, place) for number in itertools.islice(free, more) for place in range(size))
    return tuple(itertools.islice(itertools.chain(_holes(workers, size), new), BATCH))


def _holes(workers: Sequence[Pod], size: int) -> Iterator[Slot]:
    """Places of groups that lack a worker, one by one: a group may be of any size that a spec names."""
    for group in of(workers):
        if group[0].slot and len(group) < size and not _repeats(group, workers):
            places = {p.slot.place for p in group if p.slot}
            yield from (Slot(group[0].slot.group, place) for place in range(size) if place not in places)


def charged(
    slots: Iterable[Slot], workers: Iterable[Pod], charges: Iterable[Charge]
) -> tuple[tuple[Slot, Charge], ...]:
    """Slots with a Workload that has quota for them: that of their group's other workers; a new group has one."""
    free: dict[str, list[Charge]] = {}
    for charge in charges:
        free.setdefault(charge.workload, []).append(charge)
    workloads = {p.slot.group: p.workload for p in workers if p.slot}
    found: list[tuple[Slot, Charge]] = []
    for group, of_group in itertools.groupby(slots, key=lambda slot: slot.group):
        wanted = list(of_group)
        roomy = next((name for name, left in free.items() if len(left) >= len(wanted)), "")
        left = free.get(workloads.get(group, roomy), [])
        found += zip(wanted, left, strict=False)
        del left[: len(wanted)]
    return tuple(found)


def count_whole(pods: Iterable[Pod], alive: Collection[str], size: int) -> int:
    """How many replicas are whole, of the ``alive`` workers (names). A group that lacks a worker does not train."""
    if size == 1:
        return len(alive)
    return sum(len(group) == size for group in of(p for p in pods if p.name in alive))


def count_new(there: Iterable[Replica], coming: Iterable[Slot], size: int) -> int:
    """How many of the groups to which new workers belong are not ``there`` yet."""
    if size == 1:
        return len(tuple(coming))
    return len({s.group for s in coming} - {group[0].slot.group for group in there if group[0].slot})


def _repeats(group: Replica, workers: Iterable[Pod]) -> bool:
    """Whether another worker has the place of this group's only one: it leaves, and gets no mates."""
    return len(group) == 1 and next(p.name for p in workers if p.slot == group[0].slot) != group[0].name


def _has_any(group: Replica, names: Collection[str]) -> bool:
    return any(p.name in names for p in group)
