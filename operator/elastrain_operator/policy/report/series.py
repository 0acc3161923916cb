"""Which events are sent to the API server, when, and which are counted in one that exists. Pure.

Equal events on a job within :data:`WINDOW` are one series: one object with a count, as in events.k8s.io/v1. Beyond
:data:`DISTINCT` different messages of one reason, further ones join a combined series, which shows the newest message.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain_operator.facts import JobEvent, JobRef

WINDOW = timedelta(minutes=10)
"""An event that comes later begins a new series."""
DISTINCT = 10
"""Messages of one reason on one job that have an object of their own within a window."""
LONGEST_QUEUE = 5000
"""Series with something to send: a start of several thousand jobs fits. About 1 kB each."""
ATTEMPTS = 5
"""Attempts to send a change of a series."""
DELAYS = (1.0, 2.0, 5.0, 10.0)
"""Seconds before the next attempt, by the number of failed ones, if the API server names no time."""
COMBINED = "(combined from similar events) "

_Key = tuple[str, str, str, str]
"""UID of the job, reason, severity, message; the message is empty in the combined series of a reason."""


@dataclass(slots=True)
class Series:
    """Equal events on one job."""

    job: JobRef
    event: JobEvent
    """The newest one."""
    first: datetime
    last: datetime
    count: int = 1
    sent: int = 0
    """Count in the API server's object; 0: it does not exist yet."""
    name: str = ""
    """Name of that object."""
    failed: int = 0
    """Attempts since the last success."""
    due: datetime | None = None
    """When to try again; None: now."""


class EventQueue:
    """The series of the last window, and those of them that have something to send."""

    def __init__(self) -> None:
        self.dropped = 0
        """Events that were never sent, in all."""
        self._jobs: dict[str, dict[_Key, Series]] = {}  # by UID
        self._waiting: dict[_Key, Series] = {}  # in order
        self._busy: dict[str, _Key] = {}  # UID of a job -> the series that is being sent
        self._held: dict[str, datetime] = {}  # namespace -> end of the API server's rate limit
        self._swept: datetime | None = None

    def add(self, job: JobRef, event: JobEvent, now: datetime) -> None:
        """An event happened. Beyond the bound of the queue it is dropped."""
        self._sweep(now)
        known = self._jobs.setdefault(job.uid, {})
        key, shown = _place(known, job, event, now)
        series = known.get(key)
        if series is not None and _continues(series, now):
            series.event, series.last, series.count = shown, now, series.count + 1
        elif len(self._waiting) >= LONGEST_QUEUE:
            self.dropped += 1
            return
        else:
            series = Series(job, shown, now, now)
        known[key] = self._waiting[key] = series

    def take(self, now: datetime) -> Series | None:
        """The next series to send; None: none is due. One series of a job at a time, in order. The caller reports its
        result by :meth:`done`, :meth:`failed` or :meth:`vanished`."""
        self._held = {namespace: until for namespace, until in self._held.items() if until > now}
        for key, series in self._waiting.items():
            uid = series.job.uid
            if uid in self._busy or series.job.namespace in self._held or (series.due and series.due > now):
                continue
            del self._waiting[key]
            self._busy[uid] = key
            return series
        return None

    def done(self, series: Series, count: int) -> None:
        """The API server's object has ``count`` now."""
        key = self._busy.pop(series.job.uid)
        series.sent, series.failed, series.due = count, 0, None
        if series.count > count:
            self._waiting[key] = series

    def failed(self, series: Series, now: datetime, *, again: bool, retry: float = 0.0, limited: bool = False) -> None:
        """An attempt failed. ``again``: another one makes sense, after ``retry`` seconds if the API server named them;
        ``limited``: until then it takes no other event of the namespace either."""
        key = self._busy.pop(series.job.uid)
        series.failed += 1
        if not again or series.failed >= ATTEMPTS:
            self.dropped += series.count - series.sent
            self._waiting.pop(key, None)
            self._jobs.get(series.job.uid, {}).pop(key, None)
            return
        series.due = now + timedelta(seconds=retry or DELAYS[min(series.failed, len(DELAYS)) - 1])
        if limited:
            self._held[series.job.namespace] = series.due
        self._waiting = {key: series, **self._waiting}

    def vanished(self, series: Series) -> None:
        """The API server's object has expired or was deleted: the series begins again."""
        key = self._busy.pop(series.job.uid)
        series.count, series.sent, series.first = max(series.count - series.sent, 1), 0, series.last
        self._waiting[key] = series

    def give_up(self) -> None:
        """Nothing that waits will be sent."""
        self.dropped += sum(series.count - series.sent for series in self._waiting.values())
        self._waiting.clear()

    @property
    def is_empty(self) -> bool:
        """Everything has been sent or dropped."""
        return not self._waiting and not self._busy

    def next_due(self, now: datetime) -> float | None:
        """Seconds until a waiting series is due; None: none waits for a time."""
        moments = [
            max(filter(None, (self._held.get(s.job.namespace), s.due)), default=now) for s in self._waiting.values()
        ]
        later = [moment for moment in moments if moment > now]
        return (min(later) - now).total_seconds() if later else None

    def _sweep(self, now: datetime) -> None:
        """Forget series whose window has passed, from time to time."""
        if self._swept is not None and now - self._swept < WINDOW:
            return
        self._swept = now
        for uid, known in list(self._jobs.items()):
            kept = {key: series for key, series in known.items() if _continues(series, now)}
            if kept:
                self._jobs[uid] = kept
            else:
                del self._jobs[uid]


def _continues(series: Series, now: datetime) -> bool:
    """Whether an equal event joins this series: within the window, and as long as some of its events are unsent, since
    another series of the same key would take its place in the queue."""
    return now - series.last < WINDOW or series.count > series.sent


def _place(known: dict[_Key, Series], job: JobRef, event: JobEvent, now: datetime) -> tuple[_Key, JobEvent]:
    """The series of an event, and the event as this series shows it."""
    key = (job.uid, event.reason, event.severity.value, event.message)
    similar = [k for k, s in known.items() if k[1:3] == key[1:3] and now - s.last < WINDOW]
    if key in similar or len(similar) < DISTINCT:
        return key, event
    return (*key[:3], ""), JobEvent(event.reason, COMBINED + event.message, event.severity)
