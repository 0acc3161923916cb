"""Workers whose container runs, but that neither train nor answer: after a bounded time they are lost. Pure.

An agent that hangs, or that cannot reach etcd, keeps its pod Running and Ready. Its job would wait for it without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from elastrain_operator.facts import Cause, Coordination, Loss, Pod

ANSWER_SECONDS = 300.0
"""Seconds from the operator's first such observation until the worker is replaced. An agent registers within seconds of
its start, and again after an outage of etcd; it also takes the time of a slow node."""

SilentAgents = Mapping[str, datetime]
"""Pods (UIDs) and since when each of them is known to run without an answer."""


def update(
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


def overdue(silent_agents: SilentAgents, now: datetime) -> frozenset[str]:
    """UIDs of the pods whose time to answer is over."""
    return frozenset(uid for uid, since in silent_agents.items() if now >= since + timedelta(seconds=ANSWER_SECONDS))


def next_deadline(silent_agents: SilentAgents) -> datetime | None:
    """When the next time ends; None: all agents answer."""
    return min((since + timedelta(seconds=ANSWER_SECONDS) for since in silent_agents.values()), default=None)


def loss(pod: Pod) -> Loss:
    """The loss of an overdue worker. The cause may be its node, its network or its image: it counts as infrastructure,
    with that budget and the delays of replacements."""
    text = (
        f"worker {pod.name} has run for {ANSWER_SECONDS:g} s without a record of its agent in etcd; it is replaced. "
        "The agent hangs, or its node cannot reach etcd"
    )
    return Loss(pod, Cause.INFRASTRUCTURE, "AgentSilent", text)
