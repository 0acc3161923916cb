"""Sends events to the API server, beside the passes and never in their way."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import structlog

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.facts import JobEvent, JobRef, Severity
from elastrain_operator.kube.answers import ApiError, NotLeading
from elastrain_operator.kube.client import Kube
from elastrain_operator.metrics.process import EVENTS
from elastrain_operator.policy.report.series import EventQueue, Series
from elastrain_operator.waiting import until

SENDERS = 4
"""Concurrent requests for events, of the 32 that the client allows."""
FLUSH_SECONDS = 2.0
"""Longest time that an orderly stop waits for events."""
NOT_FOUND, TOO_MANY = 404, 429

log = structlog.get_logger(__name__)


class Recorder:
    """The events of all jobs. Not thread-safe."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._queue = EventQueue()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._dropped = 0

    def record(self, job: JobRef, event: JobEvent) -> None:
        """Log an event, and send it soon. Returns at once."""
        written = log.warning if event.severity is Severity.WARNING else log.info
        written(event.message, job=f"{job.namespace}/{job.name}", event_reason=event.reason)
        self._queue.add(job, event, clock.now())
        self._note()

    async def run(self) -> None:
        """Send events until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for number in range(SENDERS):
                senders.create_task(self._send_all(), name=f"events {number}")

    async def close(self) -> None:
        """Wait until all events are sent, for up to :data:`FLUSH_SECONDS`; drop the rest. :meth:`run` must run."""
        self._note()
        if not await until(self._idle, FLUSH_SECONDS):
            self._queue.give_up()
            self._note()

    async def _send_all(self) -> None:
        while True:
            self._changed.clear()
            series = self._queue.take(clock.now())
            if series is not None:
                await self._send(series)
                self._note()
            else:
                await until(self._changed, self._queue.next_due(clock.now()))

    async def _send(self, series: Series) -> None:
        namespace, count = series.job.namespace, series.count
        try:
            if series.sent:
                await self._kube.patch_event(namespace, series.name, change_of(series))
            else:
                series.name = f"{series.job.name}.{uuid.uuid4().hex[:16]}"
                await self._kube.create_event(namespace, body_of(series))
        except ApiError as error:
            self._note_failed(series, error, clock.now())
        except BaseException:  # cancelled
            self._queue.failed(series, clock.now(), again=False)
            self._note()
            raise
        else:
            EVENTS.labels("recorded").inc()
            self._queue.done(series, count)

    def _note_failed(self, series: Series, error: ApiError, now: datetime) -> None:
        if error.code == NOT_FOUND and series.sent:
            self._queue.vanished(series)
            return
        if series.failed == 0:
            job = f"{series.job.namespace}/{series.job.name}"
            log.warning("event not recorded", job=job, event_reason=series.event.reason, error=str(error))
        again, limited = error.is_transient and not isinstance(error, NotLeading), error.code == TOO_MANY
        self._queue.failed(series, now, again=again, retry=error.retry_after, limited=limited)

    def _note(self) -> None:
        """The queue has changed."""
        EVENTS.labels("dropped").inc(self._queue.dropped - self._dropped)
        self._dropped = self._queue.dropped
        self._changed.set()
        if self._queue.is_empty:
            self._idle.set()
        else:
            self._idle.clear()


def body_of(series: Series) -> dict[str, Any]:
    """A core/v1 event on the job."""
    job, event = series.job, series.event
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "reason": event.reason,
        "type": event.severity.value,
        "source": {"component": "elastrain-operator"},
        "reportingComponent": f"{names.GROUP}/operator",
        "firstTimestamp": _stamp(series.first),
        **change_of(series),
    }


def change_of(series: Series) -> dict[str, Any]:
    """The fields of the event that change when the series continues."""
    return {"message": series.event.message, "lastTimestamp": _stamp(series.last), "count": series.count}


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
