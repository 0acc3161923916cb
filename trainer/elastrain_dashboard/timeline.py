"""The known rescales of a job: the newest from its status, those of the last hour from its events.

Pure. The caller passes earlier results in again, since events expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain_cli.client import Event
from elastrain_resource import rescaled
from elastrain_resource.job import LastRescale
from elastrain_resource.job.shown import time_of

KEPT = 100
"""Kept rescales of a job."""
_SAME_WITHIN = timedelta(minutes=2)
"""Tolerance in seconds: the status has the time of the operator's observation, the event the time of its creation."""
_ROUNDING = 0.0051
"""Tolerance in seconds between a pause and its rounded value in an event."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A rescale and its time of observation."""

    time: datetime
    rescale: LastRescale


def merged(known: Sequence[Moment], events: Iterable[Event], last: LastRescale | None) -> tuple[Moment, ...]:
    """``known`` with the rescales of events and status added, oldest first; the status has the more precise values."""
    moments = list(known)
    for event in events:
        rescale = rescaled.read(event.message) if event.reason == rescaled.REASON and event.time else None
        if rescale and event.time and _find(moments, event.time, rescale) is None:
            moments.append(Moment(event.time, rescale))
    seen = time_of(last.time) if last else None
    if last and seen:
        at = _find(moments, seen, last)
        if at is not None:
            del moments[at]
        moments.append(Moment(seen, last))
    return tuple(sorted(moments, key=lambda m: m.time)[-KEPT:])


def _find(moments: Sequence[Moment], time: datetime, rescale: LastRescale) -> int | None:
    """Index of the same rescale in ``moments``."""
    for index, moment in enumerate(moments):
        if abs(moment.time - time) < _SAME_WITHIN and _same(moment.rescale, rescale):
            return index
    return None


def _same(one: LastRescale, other: LastRescale) -> bool:
    if (one.from_, one.to, one.reason, one.lost_steps) != (other.from_, other.to, other.reason, other.lost_steps):
        return False
    return abs(one.pause_seconds - other.pause_seconds) <= _ROUNDING
