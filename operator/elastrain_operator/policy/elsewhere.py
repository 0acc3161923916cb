"""Jobs of another operator: this one leaves them alone. Pure.

Two installations may serve one namespace by mistake. Each has a Lease and an etcd of its own, and in its etcd the
other's workers have no records: it would call healthy workers silent, and delete them. Of a new job, each would create
workers, which would train apart.

So ``status.etcd`` names the etcd of the operator that creates the job's workers. It is written before the first of
them, on the condition that the job has not changed: of two operators one succeeds. A claim to a job without workers is
taken over after some time, as its operator may be uninstalled; if it is alive, it takes the job back in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.etcd.config import endpoints_of
from elastrain_operator.facts import JobEvent, Observed, Pod, Severity

REASON = "OtherOperator"
PATIENCE = timedelta(seconds=60)
"""For which a job without workers that another operator has claimed must stay unchanged before it is taken over."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Another operator's claim to a job, as this operator has followed it."""

    etcd: str
    """The endpoints that its workers are given."""
    version: str
    """The job's ``resourceVersion`` since ``since``."""
    since: datetime

    @property
    def due(self) -> datetime:
        """When a job without workers is taken over, if it stays as it is."""
        return self.since + PATIENCE


def followed(before: Claim | None, observed: Observed, claimed: str, version: str, now: datetime) -> Claim | None:
    """Another operator's claim; None: the job is unclaimed, or this operator's. ``claimed``: ``status.etcd``.

    A live worker of this operator's proves more than any claim.
    """
    if not claimed or _members(claimed) & _members(observed.etcd) or any(_is_own(p, observed) for p in _live(observed)):
        return None
    if before is not None and (before.etcd, before.version) == (claimed, version):
        return before
    return Claim(claimed, version, now)


def claim(suspended: bool, observed: Observed) -> str:
    """``status.etcd`` of a job that has not ended."""
    return "" if suspended else observed.etcd


def foreign_workers(observed: Observed) -> tuple[Pod, ...]:
    """The live workers that were given an etcd other than this operator's."""
    return tuple(p for p in _live(observed) if p.etcd and not _is_own(p, observed))


def report(found: Sequence[Pod], claim: Claim | None, endpoints: str) -> JobEvent:
    """Why nothing is done for the job: workers that were ``found``, or else another operator's ``claim``."""
    if found or claim is None:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        cause = f"worker {found[0].name}{more} heeds the etcd at {found[0].etcd}, not {endpoints}"
        way_out = "delete the job's pods"
    else:
        cause = f"its workers are to heed the etcd at {claim.etcd} (status.etcd), not {endpoints}"
        way_out = f"this one takes the job over once it has not changed for {PATIENCE.total_seconds():g} s"
    text = (
        f"{cause}: another operator manages this job, and this one leaves it alone. Let one operator serve this "
        f"namespace; if the other one is gone, {way_out}"
    )
    return JobEvent(REASON, text, Severity.WARNING)


def _live(observed: Observed) -> tuple[Pod, ...]:
    return tuple(p for p in (*observed.pods, *observed.unissued) if not p.over and p.ending is None)


def _is_own(pod: Pod, observed: Observed) -> bool:
    """Whether a worker heeds this operator's etcd. One endpoint in common proves one etcd, and so does a record of the
    worker. Records that are unknown prove nothing."""
    records = observed.coordination
    known = {m.worker for m in records.members} if records else set()
    if pod.name in known or (records is not None and records.trains(pod.name)):
        return True
    return bool(_members(observed.etcd) & _members(pod.etcd))


def _members(endpoints: str) -> frozenset[str]:
    """The endpoints, with their ports; a text that is none stands for itself: no agent of ours can use it."""
    try:
        return frozenset(endpoints_of(endpoints))
    except ValueError:
        return frozenset({endpoints})
