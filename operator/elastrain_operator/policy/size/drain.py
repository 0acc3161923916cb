"""When a worker that was asked to leave may be deleted."""

from __future__ import annotations

from datetime import datetime, timedelta

from elastrain_operator.model import Coordination, Pod


def released(pod: Pod, members: Coordination | None, due: datetime, now: datetime) -> str | None:
    """Why the pod may be deleted now, or None: it still trains, or nobody knows.

    A worker that leaves ends by itself and says how it went, so a Ready pod is left to do that, though it may be no
    member any more. ``members`` is None where membership is not known. That alone never releases a pod; the deadline
    does: it is the promise that a shrink ends.
    """
    if pod.ending:
        return "ended"
    if not pod.started:
        return "never started"
    gone = members is not None and members.member_of(pod.name) is None and not members.trains(pod.name)
    if gone and not pod.ready:
        return "no member any more"
    return "drain deadline passed" if now >= due else None


def deadline(pod: Pod, since: datetime, extra: float) -> datetime:
    """``extra`` seconds beyond the pod's own grace period, from when it was asked to leave."""
    return since + timedelta(seconds=pod.grace + extra)
