"""The first failure of an incident and the last lines of its rank: for the status, the condition Failed and its event.

Log lines are quoted verbatim. Every user who may read the job can read the output of its script.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from elastrain.api.job import LastFailure
from elastrain_operator.facts import Cause, Loss

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
