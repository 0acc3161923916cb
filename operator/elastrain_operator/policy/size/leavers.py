"""Which workers leave (the rule: :mod:`elastrain_resource.sizing.leaving`), and when each may be deleted. Pure.

The times are kept in the job's status, so that the next operator uses the same deadlines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from elastrain.api.records import Health
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, Deletion, Pod, Still
from elastrain_operator.pod import leaving
from elastrain_operator.pod.leaving import is_overdue
from elastrain_operator.policy.size import replicas
from elastrain_resource.job import JobStatus, Leaving
from elastrain_resource.sizing.leaving import WorkerFacts, leave_order, surplus

SICK = {Health.STUCK: 2, Health.SLOW: 1}
"""Members that delay all others, by their own records: a larger value leaves earlier. Waiting counts as 0."""


def ranked(workers: Sequence[Pod], members: Coordination | None, share: Share | None) -> tuple[Pod, ...]:
    """``workers`` in the order in which they leave, group by group. ``members``: None if membership is unknown."""
    units = {group[0].name: group for group in replicas.of(workers)}
    return tuple(p for w in leave_order(_facts(units.values(), members, share)) for p in units[w.name])


def choose(
    workers: Sequence[Pod],
    desired: int,
    minimum: int,
    members: Coordination | None,
    share: Share | None,
    *,
    spares: int = 0,
) -> tuple[Pod, ...]:
    """The workers that are asked to leave, in whole groups: the surplus, and those for which a better node has room.

    The latter are replaced, and only while ``minimum`` groups, and ``minimum`` training ones, remain. ``spares``:
    groups beyond ``desired`` that may stand by. Where workers have no groups, each is one.
    """
    units = {group[0].name: group for group in replicas.of(workers)}
    ranked = leave_order(_facts(units.values(), members, share))
    chosen = list(surplus(ranked, desired, spares))
    if share and share.replace and desired:
        train_on = sum(w.trains for w in ranked if w not in chosen) - minimum
        for worker in ranked:
            if worker in chosen or share.replace.isdisjoint(p.name for p in units[worker.name]):
                continue
            if len(ranked) - len(chosen) <= minimum or (worker.trains and train_on <= 0):
                continue
            train_on -= worker.trains
            chosen.append(worker)
    return tuple(p for w in chosen for p in units[w.name])


def _facts(units: Collection[replicas.Replica], members: Coordination | None, share: Share | None) -> list[WorkerFacts]:
    """Of each group, under the name of its first worker: it trains and is ready if all its workers are."""
    sickness = {m.worker: SICK[Health(m.health)] for m in members.members if m.health in SICK} if members else {}
    training = {m.worker for m in members.generation.members} if members and members.generation else frozenset()
    on_node = Counter(p.node for group in units for p in group)
    most = max(map(len, units), default=1)
    release = share.release if share else frozenset()
    shaky = share.shaky if share else frozenset()
    return [
        WorkerFacts(
            name=group[0].name,
            ordinal=min(p.ordinal for p in group),
            trains=all(p.name in training for p in group),
            ready=all(p.ready for p in group),
            released=any(p.name in release for p in group),
            unstable=any(p.name in shaky or p.disruption or p.went_unready for p in group),
            sickness=max(sickness.get(p.name, 0) for p in group),
            started=len(group) == most and all(p.started for p in group),
            neighbours=min(on_node[p.node] if p.node else 0 for p in group),
        )
        for group in units
    ]


def released(pod: Pod, members: Coordination | None, due: datetime, now: datetime) -> Deletion | None:
    """The deletion of a pod that may be deleted now; None: it still trains, or that is unknown.

    A leaving worker exits by itself and writes a termination record, so a Ready pod is kept even if it is no longer a
    member. ``members`` is None if membership is unknown. That alone never releases a pod; the deadline does, which
    guarantees that a shrink ends.
    """
    if pod.ending:
        return Deletion(pod.name, pod.uid, "ended")
    is_member = members is not None and (members.member_of(pod.name) is not None or members.trains(pod.name))
    if not pod.started and not is_member:
        return Deletion(pod.name, pod.uid, "never started", Still.NOT_STARTED)
    if members is not None and not is_member and not pod.ready:
        return Deletion(pod.name, pod.uid, "no longer a member")
    return Deletion(pod.name, pod.uid, "drain deadline passed") if now >= due else None


def has_left(pod: Pod, members: Coordination | None, now: datetime) -> bool:
    """Whether a pod's place is free: it has ended, or it is overdue, its node silent, and its lease ended."""
    if not (pod.node_silent and is_overdue(pod, now)):
        return pod.over
    return members is not None and members.member_of(pod.name) is None


def drain_deadline(pod: Pod, since: datetime) -> datetime:
    """Some time beyond the pod's own grace period, from when it was asked to leave."""
    return since + timedelta(seconds=pod.grace + leaving.DRAIN_EXTRA)


def leaving_since(status: JobStatus) -> dict[str, datetime]:
    """When each leaving worker (pod name) was asked."""
    return {worker: datetime.fromisoformat(each.since) for each in status.leaving for worker in each.workers}


def leaving_record(known: Mapping[str, datetime], leaving: Iterable[str], now: datetime) -> list[Leaving]:
    """``status.leaving`` for the ``leaving`` workers: those that are not ``known`` yet are asked now."""
    by_time: dict[datetime, list[str]] = {}
    for worker in sorted(leaving):
        by_time.setdefault(known.get(worker, now), []).append(worker)
    return [Leaving(since=moment.isoformat(), workers=workers) for moment, workers in sorted(by_time.items())]
