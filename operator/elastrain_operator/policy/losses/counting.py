"""Which workers are lost, each counted once; the first failure of an incident; streaks without progress. Pure.

Survivors of a killed worker need not wait until its lease expires: the operator ends the leases of workers whose
processes have ended for certain. Log lines are quoted verbatim: every user who may read the job can read the output of
its script. A job that runs for weeks on spot machines may lose thousands of workers and be healthy; a job that loses
twenty times its size without a committed step is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain_operator.facts import Cause, Coordination, EndedMember, Loss, Pod, Verdict
from elastrain_operator.policy.losses import causes
from elastrain_resource.job import ConditionType, JobSpec, LastFailure, LossStreak, RestartCounts


def losses(
    pods: Iterable[Pod],
    members: Coordination | None,
    leaving: Collection[str],
    alive: Collection[str] = (),
    disappeared: Iterable[Pod] = (),
) -> tuple[Loss, ...]:
    """All lost workers; ``members`` is None if membership is unknown (never treated as empty).

    ``leaving``: names of workers that were asked to leave. ``alive``: UIDs of pods that were known without a deletion
    and that the operator has not deleted: if one of them goes, another party has deleted it. ``disappeared``: pods that
    no longer exist, as last known.
    """
    found = [_loss(p, members, p.name in leaving, p.uid in alive) for p in pods]
    found += [_disappeared(p, p.name in leaving) for p in disappeared]
    return tuple(loss for loss in found if loss)


def _loss(pod: Pod, members: Coordination | None, is_leaving: bool, was_alive: bool) -> Loss | None:
    if pod.ending:
        return _ended(pod, is_leaving)
    if is_leaving:
        return None
    if pod.terminating:
        return causes.disrupted(pod) if pod.started or was_alive else None
    return causes.unreachable(pod) if is_silent(pod, members) else None


def _disappeared(pod: Pod, is_leaving: bool) -> Loss | None:
    """A pod that disappeared, perhaps before it was ever seen: it counts and paces its successor like any lost one."""
    if pod.ending:
        return _ended(pod, is_leaving)
    return None if is_leaving else causes.disrupted(pod)


def _ended(pod: Pod, is_leaving: bool) -> Loss | None:
    loss = causes.judge(pod)
    # The operator may kill a leaving worker at its deadline; an error of the script still counts.
    return loss if loss and (not is_leaving or loss.cause is Cause.USER) else None


def is_silent(pod: Pod, members: Coordination | None) -> bool:
    """The pod is no longer Ready, and the member's lease has expired.

    One sign alone is not sufficient: a pod is not Ready for many reasons, and a member may be restarting its ranks.
    """
    if not pod.went_unready or not pod.started or pod.ending or members is None:
        return False
    return members.member_of(pod.name) is None


@dataclass(frozen=True, slots=True)
class Count:
    """Restarts by cause, each lost worker counted once."""

    restarts: RestartCounts
    counted: tuple[str, ...]
    """UIDs of lost pods that are counted in ``restarts`` and still exist in the API server."""
    fresh: tuple[Loss, ...]
    """Losses counted in this pass."""


def count(restarts: RestartCounts, counted: Iterable[str], losses: Sequence[Loss], pods: Iterable[Pod]) -> Count:
    """Add each loss that is not counted yet; remove the UIDs of pods that no longer exist."""
    known = frozenset(counted)
    fresh = tuple(loss for loss in losses if loss.pod.uid not in known)
    more = {cause.value: getattr(restarts, cause) + sum(x.cause is cause for x in fresh) for cause in Cause}
    existing = {p.uid for p in pods}
    remembered = (known | {x.pod.uid for x in fresh}) & existing
    return Count(RestartCounts(**more), tuple(sorted(remembered)), fresh)


def is_exhausted(restarts: RestartCounts, limit: int) -> bool:
    """Whether the script failed more often than ``backoffLimit`` allows."""
    return restarts.user > limit


INCIDENT = timedelta(seconds=10)
"""Failures of concurrent workers within this time have one origin: the first of them."""
TAIL_CHARS = 2000
"""Characters of the log in the status."""
QUOTE_CHARS = 880
"""Characters of a condition that quotes the log: it fits into an event (the API accepts 1024)."""
OTHERS = 3
"""Most later failures of the same incident that are named."""


def last_failure(previous: LastFailure | None, fresh: Sequence[Loss], now: datetime) -> LastFailure | None:
    """The failure to show after ``fresh`` ones: the first of the newest incident, failures of the script first."""
    if not fresh:
        return previous
    incident = _newest_incident(fresh, now)
    first = min(incident, key=lambda x: (x.cause is not Cause.USER, incident.index(x)))
    newest = incident[-1]
    if previous and (previous.cause == Cause.USER or first.cause is not Cause.USER):
        at = datetime.fromisoformat(previous.time)
        if at > newest.pod.seen and _at(newest, now) - at <= INCIDENT:
            return previous
    return LastFailure(
        time=_at(first, now).isoformat(),
        worker=first.pod.name,
        rank=_rank(first),
        cause=first.cause.value,
        reason=first.reason,
        message=first.message,
        log_tail=last_lines(first.log_tail, TAIL_CHARS),
    )


def quote(losses: Sequence[Loss], room: int) -> str:
    """The newest incident among ``losses``, in about ``room`` characters: the rank that failed first with its message,
    the later failures, and as many of the first rank's last lines as fit. Empty without losses."""
    if not losses:
        return ""
    first, *others = _newest_incident(losses, None)
    text = f"last: {first.reason}: {first.message}"
    if others:
        named = ", ".join(x.pod.name for x in others[:OTHERS])
        more = f" and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
        text += f" (the first; {named}{more} failed within {INCIDENT.total_seconds():.0f} s of it)"
    tail = last_lines(first.log_tail, room - len(text) - 1)
    return f"{text}\n{tail}" if tail else text


def last_lines(log: str, chars: int) -> str:
    """As many whole lines from the end of ``log`` as fit into ``chars``; the end of a single longer line."""
    log = log.rstrip()
    if len(log) <= chars:
        return log
    if chars <= 0:
        return ""
    cut = log[-chars:]
    begins_a_line = log[-chars - 1] == "\n"
    return cut if begins_a_line or "\n" not in cut else cut.partition("\n")[2]


def _newest_incident(losses: Sequence[Loss], now: datetime | None) -> list[Loss]:
    """The last loss and the losses shortly before it, in order. A pod that ended before the last one was created is its
    predecessor and not part of the incident. Times are whole seconds; within a second, the lower rank comes first."""
    newest = max(losses, key=lambda x: (_at(x, now), x.pod.ordinal))
    together = [
        x for x in losses
        if x is newest or (_at(newest, now) - _at(x, now) <= INCIDENT and _at(x, now) > newest.pod.seen)
    ]  # fmt: skip
    return sorted(together, key=lambda x: (_at(x, now), _order(_rank(x)), x.pod.ordinal))


def _order(rank: int | None) -> int:
    return 2**31 if rank is None else rank


def _rank(loss: Loss) -> int | None:
    record = loss.pod.ending.record if loss.pod.ending else None
    return record.rank if record else None


def _at(loss: Loss, now: datetime | None) -> datetime:
    """When the worker ended; ``now`` for a pod that is terminating or silent."""
    return loss.pod.ending.at if loss.pod.ending else now or loss.pod.seen


STALE = timedelta(hours=1)
"""After this time without a loss a new streak begins: for jobs whose steps are unknown, such as stock torchrun's."""


def update_streak(
    before: LossStreak | None, fresh: Sequence[Loss], step: int | None, now: datetime
) -> LossStreak | None:
    """The streak after ``fresh`` losses; None: no streak. ``step``: committed steps as last reported."""
    lost = sum(x.cause is not Cause.USER for x in fresh)
    if before and (_progressed(before.step, step) or now - datetime.fromisoformat(before.time) >= STALE):
        before = None
    if not lost:
        return before
    return LossStreak(count=(before.count if before else 0) + lost, step=step, time=now.isoformat())


def streak_verdict(spec: JobSpec, streak: LossStreak | None, last: LastFailure | None) -> Verdict | None:
    """The job has failed if the streak exceeds ``lossLimit`` times ``maxReplicas``. ``last``: the newest loss."""
    most = spec.loss_limit * spec.max_replicas * spec.group_size
    if streak is None or streak.count <= most:
        return None
    groups = f" of {spec.group_size} workers each" if spec.group_size > 1 else ""
    text = (
        f"{streak.count} workers in a row were lost without a committed step, lossLimit ({spec.loss_limit}) times "
        f"maxReplicas ({spec.max_replicas}{groups}) is {most}"
        + (f"; last: {last.reason}: {last.message}" if last else "")
    )
    return Verdict(ConditionType.FAILED, "LossLimitExceeded", text)


def _progressed(before: int | None, now: int | None) -> bool:
    return now is not None and (before is None or now > before)


def ended_members(pods: Iterable[Pod], members: Coordination | None) -> tuple[EndedMember, ...]:
    """The members in ``pods`` (also in pods that are gone, as last known) whose processes have ended.

    A member is in a pod if it names the pod's UID; the pod's name alone may be a successor's. ``members`` is None if
    membership is unknown.
    """
    if members is None:
        return ()
    ended = {p.uid: p.name for p in pods if p.processes_ended}
    found = [m for m in members.members if m.pod in ended and m.worker == ended[m.pod]]
    return tuple(EndedMember(m.id, lease) for m in found if (lease := members.leases.get(m.id, 0)))
