"""Every rescale of a job that can still be found: in its status the newest one, in its events those of the last hour.

Pure. What was found once is passed in again, since the API server forgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.api import rescaled
from elastrain.api.job import LastRescale
from elastrain.client import Event
from elastrain.client.records import time_of

KEPT = 100
"""Rescales of a job."""
_SAME_WITHIN = timedelta(minutes=2)
"""The status names the time at which the operator saw it, the event the one at which it was told."""
_ROUNDING = 0.0051
"""Seconds by which a pause differs from itself as a sentence."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A rescale and when it was seen."""

    time: datetime
    rescale: LastRescale


def merged(known: Sequence[Moment], events: Iterable[Event], last: LastRescale | None) -> tuple[Moment, ...]:
    """``known`` and what events and status tell beside, oldest first; the status has the more exact figures."""
    moments = list(known)
    for event in events:
        told = rescaled.read(event.message) if event.reason == rescaled.REASON and event.time else None
        if told and event.time and _find(moments, event.time, told) is None:
            moments.append(Moment(event.time, told))
    seen = time_of(last.time) if last else None
    if last and seen:
        at = _find(moments, seen, last)
        if at is not None:
            del moments[at]
        moments.append(Moment(seen, last))
    return tuple(sorted(moments, key=lambda m: m.time)[-KEPT:])


def _find(moments: Sequence[Moment], time: datetime, rescale: LastRescale) -> int | None:
    """Where it is already."""
    for index, moment in enumerate(moments):
        if abs(moment.time - time) < _SAME_WITHIN and _same(moment.rescale, rescale):
            return index
    return None


def _same(one: LastRescale, other: LastRescale) -> bool:
    if (one.from_, one.to, one.reason, one.lost_steps) != (other.from_, other.to, other.reason, other.lost_steps):
        return False
    return abs(one.pause_seconds - other.pause_seconds) <= _ROUNDING
