"""kopf's handlers against a fake API server: what reaches the operator, and what never reaches the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import kopf
import pytest

from elastrain.api import names
from elastrain_operator import handlers
from elastrain_operator.kube import access
from watched_api import WatchedApi

JOBS = names.PLURAL
SECONDS = 10.0


class Seen:
    """Takes the place of the operator's ``App``: keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None, str]] = []
        self.poisoned = ""

    async def start(self) -> None:
        self.events.append(("start", None, ""))

    async def stop(self) -> None:
        self.events.append(("stop", None, ""))

    def job_event(self, kind, body) -> None:
        uid = body["metadata"]["uid"]
        self.events.append(("job", kind, uid))
        if uid == self.poisoned:
            raise ValueError("a job that the operator does not understand")


Scenario = Callable[[WatchedApi, Seen, Callable[..., Awaitable[None]]], Awaitable[None]]


@pytest.fixture
def watch(monkeypatch):
    """``watch(scenario, namespaces=...)``: run kopf with the handlers during the scenario; returns API and app."""
    monkeypatch.setattr(handlers, "RETRY_DELAYS", (0.01,))

    def run(scenario: Scenario, api: WatchedApi | None = None, namespaces: tuple[str, ...] = ()):
        api, app = api or WatchedApi(), Seen()

        async def eventually(holds: Callable[[], bool], what: str) -> None:
            async with asyncio.timeout(SECONDS):
                while not holds():
                    assert not running.done(), f"the operator has ended before: {what}"
                    await asyncio.sleep(0.01)

        async def main() -> None:
            nonlocal running
            server = api.start()
            monkeypatch.setattr(access, "login", lambda _: kopf.ConnectionInfo(server=server))
            registry, stop = kopf.OperatorRegistry(), asyncio.Event()
            handlers.register(registry, app)
            running = asyncio.create_task(
                kopf.operator(
                    registry=registry, standalone=True, identity="test", stop_flag=stop,
                    clusterwide=not namespaces, namespaces=namespaces,
                )
            )  # fmt: skip
            try:
                await scenario(api, app, eventually)
            finally:
                stop.set()
                await asyncio.wait([running], timeout=SECONDS)
                api.stop()
            await running

        running: asyncio.Task[None]
        asyncio.run(main())
        return api, app

    return run


def thing(uid: str, namespace: str = "default") -> dict:
    return {"metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": {}}


async def watching(api: WatchedApi, eventually) -> None:
    await eventually(lambda: api.is_watched(JOBS), "the watch")


def test_jobs_reach_the_operator_in_order_if_listed_added_changed_and_deleted(watch):
    api = WatchedApi()
    api.put(JOBS, thing("job"))

    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.put(JOBS, thing("late"))
        api.put(JOBS, thing("late"))
        api.delete(JOBS, "late")
        api.delete(JOBS, "job")
        await eventually(lambda: ("job", "DELETED", "job") in app.events, "the deleted job")
        await eventually(lambda: ("job", "DELETED", "late") in app.events, "the other one")

    _, app = watch(scenario, api)
    assert app.events[0] == ("start", None, "")
    assert app.events[-1] == ("stop", None, "")
    assert [e for e in app.events if e[2] == "late"] == [("job", k, "late") for k in ("ADDED", "MODIFIED", "DELETED")]
    assert [e for e in app.events if e[2] == "job"] == [("job", None, "job"), ("job", "DELETED", "job")]


def test_nothing_is_written_and_nothing_but_jobs_is_read(watch):
    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.put(JOBS, thing("job"))
        await eventually(lambda: len(app.events) == 2, "the job")
        api.delete(JOBS, "job")
        await eventually(lambda: len(app.events) == 3, "the deletion")

    api, _ = watch(scenario)
    assert {method for method, _, _ in api.requests} == {"GET"}, "no finalizer, no annotation, no event"
    read = {path for _, path, _ in api.requests if not path.endswith(("/api", "/apis", "/v1", names.VERSION))}
    assert read == {f"/apis/{names.API_VERSION}/{JOBS}"}


def test_watch_is_resumed_without_a_list_if_the_api_server_ends_it(watch):
    async def scenario(api, app, eventually):
        await watching(api, eventually)
        before = api.lists(JOBS)
        api.end_watches()
        await eventually(lambda: api.watches(JOBS) == 2, "the second watch")
        await watching(api, eventually)
        api.put(JOBS, thing("late"))
        await eventually(lambda: ("job", "ADDED", "late") in app.events, "the job")
        assert api.lists(JOBS) == before

    watch(scenario)


def test_jobs_are_listed_again_and_deletions_are_not_reported_if_history_is_gone(watch):
    """kopf's gap, which ``watch/jobs.py`` closes. If this fails, kopf reports them: delete that search."""
    api = WatchedApi()
    api.put(JOBS, thing("stays"))
    api.put(JOBS, thing("vanishes"))

    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.delete(JOBS, "vanishes", shown=False)
        api.forget_history()
        await eventually(lambda: app.events.count(("job", None, "stays")) == 2, "the second list")
        assert not [e for e in app.events if e[1] == "DELETED"]

    watch(scenario, api)


@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_operator_continues_if_a_list_is_refused_for_a_while(watch, code):
    api = WatchedApi()
    api.refusals = [code] * 12  # more often than kopf tries by default
    api.put(JOBS, thing("job"))

    async def scenario(api, app, eventually):
        await eventually(lambda: ("job", None, "job") in app.events, "the job")

    watch(scenario, api)


def test_other_jobs_are_handled_if_one_is_unreadable(watch):
    async def scenario(api, app, eventually):
        app.poisoned = "poison"
        await watching(api, eventually)
        for uid in ("poison", "healthy"):
            api.put(JOBS, thing(uid))
        await eventually(lambda: ("job", "ADDED", "healthy") in app.events, "the healthy job")
        api.put(JOBS, thing("poison"))
        await eventually(lambda: ("job", "MODIFIED", "poison") in app.events, "the next event of the other one")

    watch(scenario)
