"""Workers that delay the others, by their own agents' records: a condition with figures, and one event each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from elastrain.api.records import Generation, Health, Member
from elastrain_operator.facts import ConditionUpdate, Coordination, JobEvent, Severity
from elastrain_resource.job import ConditionType, GenerationStatus, UnhealthyWorker

KEPT = 10
"""Most workers that the status names."""
MESSAGE_CHARS = 300
"""Longest quote of an agent's message, in characters."""

_REASONS = {Health.STUCK: "RankStuck", Health.SLOW: "Straggler"}
"""States that are reported. Healthy workers report ``waiting`` and ``belowMin``."""


def unhealthy(previous: Iterable[UnhealthyWorker], seen: Coordination, now: datetime) -> list[UnhealthyWorker]:
    """Stragglers and workers that hang, as their agents report them; those that hang first, then by rank."""
    since = {(w.worker, w.health): w.since for w in previous}
    accused = sorted((m for m in seen.members if m.health in _REASONS), key=lambda m: _order(m, seen.generation))
    return [
        UnhealthyWorker(
            worker=m.worker,
            health=str(m.health),
            message=f"{_where(m, seen.generation)}: {m.health_message[:MESSAGE_CHARS] or m.health}",
            since=since.get((m.worker, str(m.health)), now.isoformat(timespec="seconds")),
        )
        for m in accused[:KEPT]
    ]


def claim(workers: Sequence[UnhealthyWorker], generation: GenerationStatus | None) -> ConditionUpdate:
    """The condition WorkersHealthy of a job that has not ended, if etcd is known."""
    kind = ConditionType.WORKERS_HEALTHY
    if workers:
        more = f" (and {len(workers) - 1} more)" if len(workers) > 1 else ""
        return ConditionUpdate(kind, "False", _REASONS[Health(workers[0].health)], explanation(workers[0]) + more)
    if generation is None or not generation.size:
        return ConditionUpdate(kind, "Unknown", "NoGeneration", "no generation trains")
    return ConditionUpdate(kind, "True", "NoneAccused", "no worker delays the others")


def events_of(before: Iterable[UnhealthyWorker], after: Iterable[UnhealthyWorker], ended: bool) -> Iterable[JobEvent]:
    """One for each newly unhealthy worker, and for each that recovers (not: that the end of the job clears)."""
    old, new = {(w.worker, w.health): w for w in before}, {(w.worker, w.health): w for w in after}
    for key, worker in new.items():
        if key not in old:
            yield JobEvent(_REASONS[Health(worker.health)], explanation(worker), Severity.WARNING)
    still = {w.worker for w in new.values()}
    for worker in old.values():
        if worker.worker not in still and not ended and len(new) < KEPT:
            yield JobEvent("WorkerHealthy", f"worker {worker.worker} no longer delays the others (was {worker.health})")


def explanation(worker: UnhealthyWorker) -> str:
    """``rank 3 (worker job-3 on node x): local rank 0 computes 10.2 times as long ..., since ...``."""
    return f"{worker.message}; since {worker.since}"


def _where(member: Member, generation: Generation | None) -> str:
    """``rank 3 (worker job-3 on node x)``: the affected rank, or all of the worker if its agent names none."""
    worker = f"worker {member.worker}{f' on node {member.node}' if member.node else ''}"
    place = generation.member(member.id) if generation else None
    if place is None:
        return worker
    first, last = place.rank_offset, place.rank_offset + place.slots - 1
    if member.health_rank is not None:
        first = last = min(first + member.health_rank, last)
    return f"rank {last} ({worker})" if first == last else f"ranks {first}-{last} ({worker})"


def _order(member: Member, generation: Generation | None) -> tuple[bool, int, str]:
    place = generation.member(member.id) if generation else None
    return (member.health != Health.STUCK, place.rank_offset if place else 2**31, member.worker)
