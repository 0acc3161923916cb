"""The recorder: events are sent beside the passes, bounded, and flushed at an orderly stop."""

from __future__ import annotations

import asyncio

import pytest

from elastrain_operator.facts import JobEvent, JobRef, Severity
from elastrain_operator.job import recorder as recorders
from elastrain_operator.job.recorder import Recorder
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.metrics.process import EVENTS

JOB = JobRef("ns", "job", "uid")
LIMITED = ApiError("record", 429, "TooManyRequests", "limit reached", {"retryAfterSeconds": 0.05})


class Server:
    """Stores events; raises ``errors`` first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.events: dict[str, dict] = {}
        self.stored, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def create_event(self, namespace, event):
        await self._answer()
        self.events[event["metadata"]["name"]] = event
        self.stored.set()

    async def patch_event(self, namespace, name, change):
        await self._answer()
        if name not in self.events:
            raise ApiError("count", 404, "NotFound", "no such event")
        self.events[name] |= change

    async def _answer(self):
        await self.answers.wait()
        if self.errors:
            raise self.errors.pop(0)

    def told(self) -> list[tuple[str, int]]:
        return [(event["message"], event["count"]) for event in self.events.values()]


def run(scenario, *errors: Exception) -> Server:
    """Run ``scenario(recorder, server)``; then the recorder is closed in order."""

    async def main() -> Server:
        server = Server(*errors)
        recorder = Recorder(server)
        sending = asyncio.create_task(recorder.run())
        await asyncio.wait_for(scenario(recorder, server), 10)
        await recorder.close()
        sending.cancel()
        await asyncio.wait([sending])
        return server

    return asyncio.run(main())


def dropped() -> float:
    return EVENTS.labels("dropped")._value.get()


def test_recorded_events_are_on_the_api_server_after_an_orderly_stop():
    async def scenario(recorder, server):
        for number in range(20):
            recorder.record(JOB, JobEvent(f"Reason{number}", "text", Severity.WARNING))
        assert server.events == {}, "nothing is sent in the caller's way"

    server = run(scenario)
    assert len(server.events) == 20
    event = next(iter(server.events.values()))
    assert (event["type"], event["involvedObject"]["uid"], event["firstTimestamp"][-1]) == ("Warning", "uid", "Z")


def test_repeated_event_is_one_object_with_a_count():
    async def scenario(recorder, server):
        recorder.record(JOB, JobEvent("WorkerLost", "job-1"))
        await server.stored.wait()
        recorder.record(JOB, JobEvent("WorkerLost", "job-1"))
        recorder.record(JOB, JobEvent("WorkerLost", "job-1"))

    assert run(scenario).told() == [("job-1", 3)]


def test_event_is_recorded_after_a_rate_limit():
    async def scenario(recorder, server):
        recorder.record(JOB, JobEvent("Scaling", "from 1 to 2"))

    assert run(scenario, LIMITED, LIMITED).told() == [("from 1 to 2", 1)]


def test_event_is_recorded_anew_if_its_object_has_expired():
    async def scenario(recorder, server):
        recorder.record(JOB, JobEvent("WorkerLost", "job-1"))
        await server.stored.wait()
        server.events.clear()
        recorder.record(JOB, JobEvent("WorkerLost", "job-1"))

    assert run(scenario).told() == [("job-1", 1)]


@pytest.mark.parametrize(
    "error", [ApiError("record", 403, "Forbidden", "no"), ApiError("record", 404, "NotFound", "no such namespace")]
)
def test_a_refused_event_is_dropped_and_counted(error):
    before = dropped()

    async def scenario(recorder, server):
        recorder.record(JOB, JobEvent("Scaling", "from 1 to 2"))
        recorder.record(JOB, JobEvent("Scaling", "from 2 to 3"))

    assert run(scenario, error).told() == [("from 2 to 3", 1)]
    assert dropped() - before == 1


def test_an_orderly_stop_does_not_wait_for_an_api_server_that_hangs(monkeypatch):
    monkeypatch.setattr(recorders, "FLUSH_SECONDS", 0.05)
    before = dropped()

    async def scenario(recorder, server):
        server.answers.clear()
        for reason in ("Scaling", "Draining", "Rescaled"):
            recorder.record(JOB, JobEvent(reason, ""))
        await asyncio.sleep(0)

    server = run(scenario)
    assert (server.events, dropped() - before) == ({}, 3)
