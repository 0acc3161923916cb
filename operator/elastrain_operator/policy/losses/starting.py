"""Workers that do not train: why, and for how long. Late ones are withdrawn, silent ones are lost. Pure.

The reason comes from the pod's status, and once its container runs, from its agent's record in etcd. An agent that
hangs, or that cannot reach etcd, keeps its pod Running and Ready: its job would wait for it without end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api.names import replicas
from elastrain.api.records import Member, Phase
from elastrain_operator.facts import UNSCHEDULABLE, Cause, Coordination, Deletion, Loss, Pod, Still, Trouble, Verdict
from elastrain_resource.job import ConditionType, JobSpec, Withdrawal

ARRIVAL_PATIENCE = 60.0
"""Seconds from a pod's creation until a running container that does not train is reported: importing torch may take
half of that on a busy machine."""


def troubles(workers: Iterable[Pod], etcd: Coordination | None, excluded: Sequence[str]) -> dict[str, Trouble]:
    """The trouble of each worker, by pod name; workers that train or whose state is unknown are absent.

    ``etcd`` is None if the job's records are unknown; ``excluded`` are the nodes that the job avoids.
    """
    members = {m.worker: m for m in etcd.members} if etcd else {}
    training = {m.worker for m in etcd.generation.members} if etcd and etcd.generation else set()

    def of(pod: Pod) -> Trouble | None:
        if pod.trouble:
            return _with_exclusions(pod.trouble, excluded)
        return _trouble_of(pod, members.get(pod.name), training) if etcd else None

    found = {pod.name: of(pod) for pod in workers}
    return {name: trouble for name, trouble in found.items() if trouble}


def report_due(pod: Pod, trouble: Trouble) -> datetime:
    """When a trouble has lasted long enough to be reported."""
    return pod.seen + timedelta(seconds=trouble.patience)


def lasting(workers: Iterable[Pod], troubles: dict[str, Trouble], now: datetime) -> list[Trouble]:
    """Troubles that have lasted long enough to be reported; workers that are merely starting come last."""
    ripe = [t for p in workers if (t := troubles.get(p.name)) and report_due(p, t) <= now]
    return sorted(ripe, key=lambda t: t.reason == "Starting")


def _with_exclusions(trouble: Trouble, excluded: Sequence[str]) -> Trouble:
    """The scheduler's message counts unusable nodes, but does not tell which of them the job itself avoids."""
    if trouble.reason != UNSCHEDULABLE or not excluded:
        return trouble
    text = f"the job itself avoids {', '.join(excluded)} (condition NodesExcluded)"
    return replace(trouble, message=f"{trouble.message}; {text}")


def _trouble_of(pod: Pod, member: Member | None, training: Collection[str]) -> Trouble | None:
    if pod.name in training or not pod.started or pod.ending or pod.over or pod.terminating:
        return None
    if member is None:
        text = f"its container runs, but etcd has no record of its agent; `kubectl logs {pod.name}` shows its output"
        return Trouble("AgentNotHeard", f"pod {pod.name}: {text}", ARRIVAL_PATIENCE)
    if member.phase is Phase.WARMING:
        text = "its ranks are starting; the script has not reached its first step"
    elif member.phase is Phase.READY:
        text = "its ranks are ready for the next generation"
    elif not isinstance(member.phase, Phase):
        text = f"its record in etcd has the phase {member.phase!r}, which this version of the operator does not know"
    else:
        return None
    return Trouble("Starting", f"pod {pod.name}: {text}", ARRIVAL_PATIENCE)


QUEUED = "SchedulingGated"
"""Kubernetes' reason for a pod that a queue such as Kueue holds back: the pod is not late."""


_CANNOT = frozenset({"ContainerNotCreated", "ImagePullFailed", "ContainerConfigFailed", "ContainerCrashes"})
STUCK_SECONDS = 120.0
_BY_NODE = frozenset({"ContainerNotCreated", "ImagePullFailed"})


def is_stuck(pod: Pod) -> bool:
    """Whether a worker is on a node and does not start there."""
    trouble = pod.trouble
    return bool(pod.node and trouble and not (pod.started or trouble.passes) and trouble.reason in _CANNOT)


def stuck_losses(leaving: Iterable[Pod], now: datetime) -> tuple[Loss, ...]:
    """Workers that leave and have not started in minutes, where that may be their node's fault."""
    late = [p for p in leaving if p.bound and now >= p.bound + timedelta(seconds=STUCK_SECONDS) and is_stuck(p)]
    found = [(p, p.trouble) for p in late if p.trouble and p.trouble.reason in _BY_NODE]
    return tuple(Loss(p, Cause.INFRASTRUCTURE, t.reason, t.message) for p, t in found)


def late_workers(workers: Iterable[Pod], limit: int | None, now: datetime) -> tuple[Pod, ...]:
    """Workers that have not started within ``limit`` seconds of their creation, oldest first."""
    if limit is None:
        return ()
    found = [p for p in workers if _waits(p) and now >= p.seen + timedelta(seconds=limit)]
    return tuple(sorted(found, key=lambda p: (p.seen, p.ordinal)))


def next_pending_deadline(workers: Iterable[Pod], limit: int | None) -> datetime | None:
    """When the next unstarted worker becomes late; None: no such worker, or no limit."""
    if limit is None:
        return None
    return min((p.seen + timedelta(seconds=limit) for p in workers if _waits(p)), default=None)


def pending_verdict(spec: JobSpec, workers: Sequence[Pod], units: Iterable[Pod], now: datetime) -> Verdict | None:
    """The job fails if a worker is late and fewer than ``minReplicas`` have started: they hold resources in vain.

    ``units``: as of :func:`elastrain_operator.policy.size.replicas.stand_ins`.
    """
    limit, minimum = spec.pending_deadline_seconds, spec.min_replicas
    overdue = late_workers(workers, limit, now)
    started = sum(p.started for p in units)
    if spec.suspend or not overdue or started >= minimum:
        return None
    have = replicas(started, spec.group_size)
    text = (
        f"{have} started, minReplicas is {minimum}, and within pendingDeadlineSeconds ({limit}) {_not_started(overdue)}"
    )
    return Verdict(ConditionType.FAILED, "PendingDeadlineExceeded", text)


def withdrawal_of(overdue: Sequence[Pod], limit: int | None, now: datetime) -> Withdrawal | None:
    """The record of late workers that are deleted now; the operator retries them after the same time."""
    if not overdue or limit is None:
        return None
    return Withdrawal(
        until=(now + timedelta(seconds=limit)).isoformat(),
        message=f"within pendingDeadlineSeconds ({limit}) {_not_started(overdue)}",
    )


def continued_withdrawal(
    previous: Withdrawal | None, workers: Iterable[Pod], minimum: int, now: datetime
) -> Withdrawal | None:
    """The earlier withdrawal while it is in force: until its time, or until fewer than ``minimum`` workers run."""
    if previous is None or now >= datetime.fromisoformat(previous.until):
        return None
    return previous if sum(p.started for p in workers) >= minimum else None


def late_deletions(overdue: Iterable[Pod]) -> tuple[Deletion, ...]:
    """Deletions of the late workers, and of others of their groups that never ran: no state is lost."""
    why = "did not start within pendingDeadlineSeconds"
    return tuple(Deletion(p.name, p.uid, why, Still.NOT_STARTED) for p in overdue)


def _waits(pod: Pod) -> bool:
    queued = pod.trouble is not None and pod.trouble.reason == QUEUED
    return not (pod.started or pod.ending or pod.terminating or queued)


def _not_started(overdue: Sequence[Pod]) -> str:
    first, others = overdue[0], len(overdue) - 1
    why = f"{first.trouble.reason}: {first.trouble.message}" if first.trouble else "no cause is reported"
    more = f" (and {others} more)" if others else ""
    return f"worker {first.name} did not start: {why}{more}"


ANSWER_SECONDS = 300.0
"""Seconds from the operator's first such observation until the worker is replaced. An agent registers within seconds of
its start, and again after an outage of etcd; it also takes the time of a slow node."""

SilentAgents = Mapping[str, datetime]
"""Pods (UIDs) and since when each of them is known to run without an answer."""


def update_silent(
    before: SilentAgents, workers: Iterable[Pod], members: Coordination | None, now: datetime
) -> dict[str, datetime]:
    """The workers that run without an answer now. ``members``: None: unknown, so that each time starts anew.

    ``workers`` are pods that count and were not asked to leave.
    """
    if members is None:
        return {}
    heard = {m.worker for m in members.members}
    quiet = [p.uid for p in workers if p.started and p.name not in heard and not members.trains(p.name)]
    return {uid: before.get(uid, now) for uid in quiet}


def overdue_agents(silent_agents: SilentAgents, now: datetime) -> frozenset[str]:
    """UIDs of the pods whose time to answer is over."""
    return frozenset(uid for uid, since in silent_agents.items() if now >= since + timedelta(seconds=ANSWER_SECONDS))


def next_silent_deadline(silent_agents: SilentAgents) -> datetime | None:
    """When the next time ends; None: all agents answer."""
    return min((since + timedelta(seconds=ANSWER_SECONDS) for since in silent_agents.values()), default=None)


def silent_loss(pod: Pod) -> Loss:
    """The loss of an overdue worker. The cause may be its node, its network or its image: it counts as infrastructure,
    with that budget and the delays of replacements."""
    text = (
        f"worker {pod.name} has run for {ANSWER_SECONDS:g} s without a record of its agent in etcd; it is replaced. "
        "The agent hangs, or its node cannot reach etcd"
    )
    return Loss(pod, Cause.INFRASTRUCTURE, "AgentSilent", text)
