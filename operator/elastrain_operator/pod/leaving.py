"""Pods that are being deleted: what they hold, and until when they should. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain_operator.allocation.snapshot import Held, overdue_words
from elastrain_operator.facts import Pod

DRAIN_EXTRA = 30.0
"""Seconds beyond a pod's own grace period that a worker may take to leave."""


def due(pod: Pod) -> datetime | None:
    """When it should be gone at the latest; from then on it is *overdue*. None: it is not being deleted."""
    return None if pod.deleted is None else pod.deleted + timedelta(seconds=pod.grace + DRAIN_EXTRA)


def is_overdue(pod: Pod, now: datetime) -> bool:
    """Whether it should be gone."""
    end = due(pod)
    return end is not None and end <= now and not pod.over


def overdue(pods: Iterable[Pod], now: datetime) -> str:
    """The overdue pods, at the end of a message that waits for them; empty: there are none."""
    return overdue_words(_words(p) for p in pods if is_overdue(p, now))


def held(pod: Pod) -> Held:
    """What a pod holds on its node."""
    return Held(pod.node, pod.demand, pod.priority, due(pod), _words(pod) if pod.deleted else "")


def _words(pod: Pod) -> str:
    since = f", deleted at {pod.deleted.isoformat(timespec='seconds')}" if pod.deleted else ""
    kept = f" (finalizers {', '.join(pod.finalizers)})" if pod.finalizers else ""
    return f"pod {pod.name} on node {pod.node}{since}{kept}"
