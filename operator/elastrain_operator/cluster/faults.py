"""Allocates although the allocator fails with some job: that job is found, named and set aside. Pure.

A job that is set aside keeps what it holds, and no other job gets it. A failure without any job is not a job's fault,
and is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from elastrain_operator.allocation.snapshot import Allocation, Held, Job, Policy, Share, Snapshot

MOST = 8
"""Most jobs that are set aside anew in one pass: finding each takes some allocations."""

Allocate = Callable[[Snapshot, Policy, datetime], Allocation]


@dataclass(frozen=True, slots=True)
class Shared:
    """An allocation of all jobs but those set aside."""

    made: Allocation
    """With a share for each job."""
    faults: Mapping[str, str]
    """UID → the error, of each job that is set aside."""


def share_out(
    allocate: Allocate, snapshot: Snapshot, policy: Policy, now: datetime, known: Mapping[str, str]
) -> Shared:
    """``allocate``, without the jobs with which it fails. ``known``: faults of earlier passes, by UID: these jobs are
    set aside at once. Raises the error of a failure that is not about a job, or is about too many."""
    faults = {j.uid: known[j.uid] for j in snapshot.jobs if j.uid in known}
    while True:
        jobs = [j for j in snapshot.jobs if j.uid not in faults]
        made = _attempt(allocate, snapshot, jobs, policy, now)
        if isinstance(made, Exception):
            made = _attempt(allocate, snapshot, jobs, policy, now)  # a fault of a job is one each time
        if isinstance(made, Allocation):
            held_back = {j.uid: _share(j, faults[j.uid]) for j in snapshot.jobs if j.uid in faults}
            return Shared(replace(made, shares={**made.shares, **held_back}), faults)
        if len(faults) >= len(known) + MOST:
            raise made
        culprit, error = _culprit(allocate, snapshot, jobs, policy, now, made)
        faults[culprit.uid] = f"{type(error).__name__}: {error}"


def _culprit(  # noqa: PLR0917 - the arguments of an allocation
    allocate: Allocate, snapshot: Snapshot, jobs: Sequence[Job], policy: Policy, now: datetime, error: Exception
) -> tuple[Job, Exception]:
    """The job with which a failure begins: without it, and with all jobs before it, there is none."""
    without = _attempt(allocate, snapshot, (), policy, now)
    if isinstance(without, Exception):
        raise without
    low, high = 0, len(jobs)  # the first `low` jobs are shared out, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        found = _attempt(allocate, snapshot, jobs[:middle], policy, now)
        low, high, error = (low, middle, found) if isinstance(found, Exception) else (middle, high, error)
    return jobs[high - 1], error


def _attempt(
    allocate: Allocate, snapshot: Snapshot, jobs: Sequence[Job], policy: Policy, now: datetime
) -> Allocation | Exception:
    """The allocation for these jobs, beside what all others hold."""
    chosen = {j.uid for j in jobs}
    held = [Held(w.node, w.demand) for j in snapshot.jobs if j.uid not in chosen for w in j.workers if w.node]
    try:
        return allocate(replace(snapshot, jobs=tuple(jobs), leaving=(*snapshot.leaving, *held)), policy, now)
    except Exception as error:  # whatever it is: it is reported on the job, and others go on
        return error


def _share(job: Job, fault: str) -> Share:
    text = (
        f"the operator cannot decide about this job, which keeps its size: {fault}: a fault of the operator, which has "
        "logged it; a change of the spec may avoid it. Other jobs are not affected"
    )
    return Share(job.size, "OperatorFault", text, generation=job.generation, obstacle="OperatorFault")
