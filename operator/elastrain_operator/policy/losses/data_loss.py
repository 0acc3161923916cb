"""Whether etcd has lost records of a job: all of them, or the newest after the restore of an old snapshot. Pure.

The status names the generation that trained last. Numbers of generations never go back, so etcd has lost data if it
has no generation, or an older one. The members then write the newest generation again (``rendezvous/protocol.py``), and
the operator the target. Until then, a worker that is missing in etcd is not lost. If no member writes it, because all
are gone too, what etcd holds counts after :data:`PATIENCE`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from elastrain_operator.facts import Coordination
from elastrain_resource.job import JobStatus

PATIENCE = timedelta(seconds=60)
"""Within it, all members that live have reached etcd: they retry every second."""


def since(before: datetime | None, status: JobStatus, etcd: Coordination | None, now: datetime) -> datetime | None:
    """When records were first found missing; None: they are not. ``before``: the last answer; ``etcd``: None: unknown,
    which changes nothing."""
    if etcd is None:
        return before
    known = status.generation.number if status.generation else 0
    return (before or now) if _number(etcd) < known else None


def is_awaited(lost_since: datetime | None, now: datetime) -> bool:
    """Whether members may still write the missing records."""
    return lost_since is not None and now < lost_since + PATIENCE


def floor(status: JobStatus, etcd: Coordination, lost: bool) -> int:
    """``target.above``: the number that numbers of new generations exceed.

    It grows only after a loss. Without it, members that know nothing of the past would give numbers twice.
    """
    former = etcd.target.above if etcd.target else 0
    if not lost:
        return former
    return max(former, status.generation.number if status.generation else 0, etcd.highest)


def message(status: JobStatus, etcd: Coordination) -> str:
    """For the condition CoordinationAvailable."""
    known = status.generation.number if status.generation else 0
    held = f"generation {_number(etcd)}" if _number(etcd) else "no generation"
    return (
        f"etcd has lost data: it holds {held} of this job, and generation {known} was formed. Running workers continue "
        "and write their records again; until then, none counts as lost or is asked to leave"
    )


def _number(etcd: Coordination) -> int:
    return etcd.generation.number if etcd.generation else 0
