"""Why a worker does not train: from its pod's status, and once its container runs, from its agent's record in etcd.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api.records import Member, Phase
from elastrain_operator.facts import UNSCHEDULABLE, Coordination, Pod, Trouble

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
        return _starting(pod, members.get(pod.name), training) if etcd else None

    found = {pod.name: of(pod) for pod in workers}
    return {name: trouble for name, trouble in found.items() if trouble}


def report_at(pod: Pod, trouble: Trouble) -> datetime:
    """When a trouble has lasted long enough to be reported."""
    return pod.seen + timedelta(seconds=trouble.patience)


def lasting(workers: Iterable[Pod], troubles: dict[str, Trouble], now: datetime) -> list[Trouble]:
    """Troubles that have lasted long enough to be reported; workers that are merely starting come last."""
    ripe = [t for p in workers if (t := troubles.get(p.name)) and report_at(p, t) <= now]
    return sorted(ripe, key=lambda t: t.reason == "Starting")


def _with_exclusions(trouble: Trouble, excluded: Sequence[str]) -> Trouble:
    """The scheduler's message counts unusable nodes, but does not tell which of them the job itself avoids."""
    if trouble.reason != UNSCHEDULABLE or not excluded:
        return trouble
    text = f"the job itself avoids {', '.join(excluded)} (condition NodesExcluded)"
    return replace(trouble, message=f"{trouble.message}; {text}")


def _starting(pod: Pod, member: Member | None, training: Collection[str]) -> Trouble | None:
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
