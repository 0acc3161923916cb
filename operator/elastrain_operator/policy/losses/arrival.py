"""What keeps a worker from training: what Kubernetes says of its pod, and, when its container runs, what etcd knows of
its agent's way into a generation. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api.records import Member, Phase
from elastrain_operator.model import UNSCHEDULABLE, Coordination, Pod, Trouble

ARRIVAL_PATIENCE = 60.0
"""Seconds from a pod's creation until it is worth telling that its container runs and does not train: to import torch
may take half of that on a busy machine."""


def troubles(workers: Iterable[Pod], etcd: Coordination | None, excluded: Sequence[str]) -> dict[str, Trouble]:
    """By name of the pod; without those that train or of which nothing is known.

    ``etcd`` is None where the job's records are not known; ``excluded`` are the nodes that the job keeps off.
    """
    members = {m.worker: m for m in etcd.members} if etcd else {}
    training = {m.worker for m in etcd.generation.members} if etcd and etcd.generation else set()

    def of(pod: Pod) -> Trouble | None:
        if pod.trouble:
            return _with_its_share(pod.trouble, excluded)
        return _on_its_way(pod, members.get(pod.name), training) if etcd else None

    found = {pod.name: of(pod) for pod in workers}
    return {name: trouble for name, trouble in found.items() if trouble}


def worth_telling_at(pod: Pod, trouble: Trouble) -> datetime:
    """When a trouble has lasted long enough to be reported."""
    return pod.created + timedelta(seconds=trouble.patience)


def lasting(workers: Iterable[Pod], troubles: dict[str, Trouble], now: datetime) -> list[Trouble]:
    """Troubles that have lasted long enough to be reported; workers that only start come last."""
    ripe = [t for p in workers if (t := troubles.get(p.name)) and worth_telling_at(p, t) <= now]
    return sorted(ripe, key=lambda t: t.reason == "Starting")


def _with_its_share(trouble: Trouble, excluded: Sequence[str]) -> Trouble:
    """The scheduler says how many nodes it may not use, and not that some are of the job's own choice."""
    if trouble.reason != UNSCHEDULABLE or not excluded:
        return trouble
    text = f"the job itself keeps off {', '.join(excluded)}, as condition NodesExcluded says"
    return replace(trouble, message=f"{trouble.message}; {text}")


def _on_its_way(pod: Pod, member: Member | None, training: Collection[str]) -> Trouble | None:
    if pod.name in training or not pod.started or pod.ending or pod.over or pod.terminating:
        return None
    if member is None:
        text = f"its container runs, but etcd has no word of its agent; `kubectl logs {pod.name}` shows what it does"
        return Trouble("AgentNotHeard", f"pod {pod.name}: {text}", ARRIVAL_PATIENCE)
    if member.phase is Phase.WARMING:
        text = "its ranks start, and the script has not come to its first step"
    elif member.phase is Phase.READY:
        text = "its ranks are ready for the next generation"
    else:
        return None
    return Trouble("Starting", f"pod {pod.name}: {text}", ARRIVAL_PATIENCE)
