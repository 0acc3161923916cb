"""kopf's handlers against a fake API server: what reaches the operator, and what never reaches the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import kopf
import pytest

from elastrain.api import names
from elastrain_operator import handlers
from elastrain_operator.kube import access
from elastrain_operator.observe.pods import SELECTOR
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
        self.events.append(("job", kind, body["metadata"]["uid"]))

    def pod_event(self, kind, body) -> None:
        uid = body["metadata"]["uid"]
        self.events.append(("pod", kind, uid))
        if uid == self.poisoned:
            raise ValueError("a pod that the operator does not understand")


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
    await eventually(lambda: api.is_watched("pods") and api.is_watched(JOBS), "both watches")


def test_objects_reach_the_operator_in_order_if_listed_added_changed_and_deleted(watch):
    api = WatchedApi()
    api.put(JOBS, thing("job"))
    api.put("pods", thing("pod"))

    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.put("pods", thing("late"))
        api.put("pods", thing("late"))
        api.delete("pods", "late")
        api.delete(JOBS, "job")
        await eventually(lambda: ("job", "DELETED", "job") in app.events, "the deleted job")
        await eventually(lambda: ("pod", "DELETED", "late") in app.events, "the deleted pod")

    _, app = watch(scenario, api)
    assert app.events[0] == ("start", None, "")
    assert app.events[-1] == ("stop", None, "")
    assert ("pod", None, "pod") in app.events
    assert [e for e in app.events if e[2] == "late"] == [("pod", k, "late") for k in ("ADDED", "MODIFIED", "DELETED")]
    assert [e for e in app.events if e[0] == "job"] == [("job", None, "job"), ("job", "DELETED", "job")]


def test_nothing_is_written_and_nothing_cluster_scoped_is_read(watch):
    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.put(JOBS, thing("job"))
        api.put("pods", thing("pod"))
        await eventually(lambda: len(app.events) == 3, "both objects")
        api.delete(JOBS, "job")
        await eventually(lambda: len(app.events) == 4, "the deletion")

    api, _ = watch(scenario)
    assert {method for method, _, _ in api.requests} == {"GET"}, "no finalizer, no annotation, no event"
    read = {path for _, path, _ in api.requests if not path.endswith(("/api", "/apis", "/v1", names.VERSION))}
    assert read == {"/api/v1/pods", f"/apis/{names.API_VERSION}/{JOBS}"}


def test_only_worker_pods_of_the_served_namespaces_are_watched(watch):
    async def scenario(api, app, eventually):
        await watching(api, eventually)

    api, _ = watch(scenario, namespaces=("a", "b"))
    asked = {(path, query.get("labelSelector")) for _, path, query in api.requests if path.endswith("pods")}
    assert asked == {(f"/api/v1/namespaces/{n}/pods", SELECTOR) for n in ("a", "b")}
    assert not any(query.get("labelSelector") for _, path, query in api.requests if path.endswith(JOBS))


def test_watch_is_resumed_without_a_list_if_the_api_server_ends_it(watch):
    async def scenario(api, app, eventually):
        await watching(api, eventually)
        before = api.lists("pods")
        api.end_watches()
        await eventually(lambda: api.watches("pods") == 2, "the second watch")
        await watching(api, eventually)
        api.put("pods", thing("late"))
        await eventually(lambda: ("pod", "ADDED", "late") in app.events, "the pod")
        assert api.lists("pods") == before

    watch(scenario)


def test_objects_are_listed_again_and_deletions_are_not_reported_if_history_is_gone(watch):
    """kopf's gap, which ``observe/vanished.py`` closes. If this fails, kopf reports them: delete that module."""
    api = WatchedApi()
    api.put("pods", thing("stays"))
    api.put("pods", thing("vanishes"))

    async def scenario(api, app, eventually):
        await watching(api, eventually)
        api.delete("pods", "vanishes", shown=False)
        api.forget_history()
        await eventually(lambda: app.events.count(("pod", None, "stays")) == 2, "the second list")
        assert not [e for e in app.events if e[1] == "DELETED"]

    watch(scenario, api)


@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_operator_continues_if_a_list_is_refused_for_a_while(watch, code):
    api = WatchedApi()
    api.refusals = [code] * 12  # more often than kopf tries by default
    api.put("pods", thing("pod"))

    async def scenario(api, app, eventually):
        await eventually(lambda: ("pod", None, "pod") in app.events, "the pod")

    watch(scenario, api)


def test_other_objects_are_handled_if_one_is_unreadable(watch):
    async def scenario(api, app, eventually):
        app.poisoned = "poison"
        await watching(api, eventually)
        for uid in ("poison", "healthy"):
            api.put("pods", thing(uid))
        await eventually(lambda: ("pod", "ADDED", "healthy") in app.events, "the healthy pod")
        api.put("pods", thing("poison"))
        await eventually(lambda: ("pod", "MODIFIED", "poison") in app.events, "the next event of the other one")

    watch(scenario)
