"""Jobs whose workers heed another operator's etcd: this operator leaves them alone. Pure.

Two installations may serve one namespace by mistake. Each has a Lease and an etcd of its own, and in its etcd the
other's workers have no records: it would call healthy workers silent, and delete them.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.etcd.config import endpoints_of
from elastrain_operator.facts import JobEvent, Observed, Pod, Severity

REASON = "OtherOperator"


def foreign_workers(observed: Observed, endpoints: str) -> tuple[Pod, ...]:
    """The live workers that were given an etcd other than the one at ``endpoints``, as this operator gives it to
    workers.

    One endpoint in common proves one etcd, and so does a record of the worker. Records that are unknown prove nothing.
    """
    own, records = _members(endpoints), observed.coordination
    known = {m.worker for m in records.members} if records else set()
    return tuple(
        p for p in (*observed.pods, *observed.unissued)
        if p.etcd and not p.over and p.ending is None and p.name not in known and not own & _members(p.etcd)
        and not (records and records.trains(p.name))
    )  # fmt: skip


def report(found: Sequence[Pod], endpoints: str) -> JobEvent:
    """Why nothing is done for the job."""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = (
        f"worker {found[0].name}{more} heeds the etcd at {found[0].etcd}, not {endpoints}: another operator manages "
        "this job, and this one leaves it alone. Let one operator serve this namespace; if the other one is gone, "
        "delete the job's pods"
    )
    return JobEvent(REASON, text, Severity.WARNING)


def _members(endpoints: str) -> frozenset[str]:
    """The endpoints, with their ports; a text that is none stands for itself: no agent of ours can use it."""
    try:
        return frozenset(endpoints_of(endpoints))
    except ValueError:
        return frozenset({endpoints})
