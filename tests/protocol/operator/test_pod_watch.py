"""The watch of worker pods by the operator's client, against a fake API server that breaks off, forgets and is away."""

from __future__ import annotations

import asyncio
import contextlib

import kopf
import pytest

from conditions import until
from elastrain.api.keys import JobKeys
from elastrain_operator.kube import repeats
from elastrain_operator.kube.access import Access
from elastrain_operator.kube.client import ApiError, Kube
from elastrain_operator.supervise import Tasks
from elastrain_operator.watch import pods as module
from elastrain_operator.watch.pods import SELECTOR, WorkerPods
from elastrain_resource import reflector
from operator_fixtures import pod_body
from watched_api import WatchedApi

__all__ = ["pod_body"]
JOB = JobKeys("default", "job", "job-uid")


class World:
    def __init__(self, api: WatchedApi, kube: Kube, body, namespaces: tuple[str, ...]) -> None:
        self.api, self._body = api, body
        self.gone: list[str] = []
        self.pods = WorkerPods(kube, namespaces, lambda job, pod, gone: gone and self.gone.append(pod.name))

    def put(self, ordinal: int, **fields) -> None:
        body = self._body(ordinal, **fields)
        self.api.put("pods", body)

    def delete(self, ordinal: int) -> None:
        """The API server marks a deletion first."""
        self.put(ordinal, deletionTimestamp="2030-01-01T00:00:00Z")
        self.api.delete("pods", f"uid-{ordinal}")

    @property
    def known(self) -> list[str]:
        return sorted(p.name for p in self.pods.of(JOB))

    async def sees(self, *names: str) -> None:
        await until(lambda: self.known == list(names), f"{names}; known: {self.known}", 10)


@pytest.fixture
def play(monkeypatch, pod_body):
    """``play(scenario)``: run ``scenario(world)`` beside the operator's watch; two workers exist before it."""
    monkeypatch.setattr(reflector.Reflector.__init__, "__kwdefaults__", {
        **reflector.Reflector.__init__.__kwdefaults__, "retry_delays": (0.01,)
    })  # fmt: skip
    monkeypatch.setattr(reflector, "RESUME_SECONDS", 0.01)
    monkeypatch.setattr(module, "AGAIN", 0.02)
    monkeypatch.setattr(repeats, "_ATTEMPTS", 1)

    def run(scenario, *, before=lambda world: None, namespaces: tuple[str, ...] = ()) -> WatchedApi:
        api = WatchedApi()
        info = kopf.ConnectionInfo(server=api.start())

        async def main() -> None:
            kube = Kube(Access(info, lambda: info))
            world = World(api, kube, pod_body, namespaces)
            world.put(0)
            world.put(1)
            before(world)
            task = Tasks(0.01).start("worker pods", world.pods.run)
            try:
                await asyncio.wait_for(scenario(world), 20)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await kube.close()

        try:
            asyncio.run(main())
        finally:
            api.stop()
        return api

    return run


async def both(world: World) -> None:
    await world.pods.listed(10)
    await world.sees("job-0", "job-1")
    await until(lambda: world.api.is_watched("pods"), "the watch")


def test_only_labelled_pods_of_the_served_namespaces_are_listed_and_each_once(play):
    async def scenario(world):
        await world.pods.listed(10)
        await until(lambda: world.api.watches("pods") == 2, "both watches")

    api = play(scenario, namespaces=("a", "b"))
    lists = sorted(path for _, path, query in api.requests if "watch" not in query)
    assert lists == [f"/api/v1/namespaces/{n}/pods" for n in ("a", "b")]
    assert {query.get("labelSelector") for _, _, query in api.requests} == {SELECTOR}


def test_changes_are_seen_without_a_list_if_the_api_server_ends_the_watch(play):
    async def scenario(world):
        await both(world)
        world.api.end_watches()
        await until(lambda: world.api.watches("pods") == 2 and world.api.is_watched("pods"), "the second watch")
        world.delete(0)
        await world.sees("job-1")
        assert world.api.lists("pods") == 1

    play(scenario)


def test_missed_deletions_are_seen_if_history_is_gone(play):
    async def scenario(world):
        await both(world)
        world.api.delete("pods", "uid-0", shown=False)
        world.api.forget_history()
        await world.sees("job-1")
        assert world.gone == ["job-0"]
        assert world.api.lists("pods") == 2

    play(scenario)


def test_known_pods_stay_and_the_watch_goes_on_after_a_proxys_page(play):
    async def scenario(world):
        await both(world)
        world.api.page = "<html>Sign in</html>"
        world.api.end_watches()
        await until(lambda: "no JSON object" in world.pods.problem, "the problem is known")
        assert world.known == ["job-0", "job-1"]
        world.api.delete("pods", "uid-0", shown=False)
        world.api.page = None
        await world.sees("job-1")
        await until(lambda: not world.pods.problem, "the end of the problem")

    play(scenario)


@pytest.mark.parametrize("code", [403, 429, 500, 503])
def test_pods_are_seen_if_their_lists_are_refused_for_a_while(play, code):
    async def scenario(world):
        await both(world)

    def refuse(world):
        world.api.refusals = [code] * 6

    play(scenario, before=refuse)


def test_the_start_ends_with_the_cause_if_pods_cannot_be_listed_in_time(play):
    async def scenario(world):
        with pytest.raises(ApiError, match="no JSON object"):
            await world.pods.listed(0.3)
        assert not world.known

    def hide(world):
        world.api.page = "<html>Sign in</html>"

    play(scenario, before=hide)


def test_known_pods_stay_while_the_api_server_is_away(play):
    async def scenario(world):
        await both(world)
        world.api.down()
        await until(lambda: world.pods.problem, "the problem is known")
        assert world.known == ["job-0", "job-1"]
        world.api.delete("pods", "uid-1", shown=False)
        world.api.up()
        await world.sees("job-0")

    play(scenario)


def test_other_pods_are_seen_if_one_has_nothing_that_a_pod_has(play):
    async def scenario(world):
        await both(world)
        world.api.put(
            "pods", {"metadata": {"name": "odd", "namespace": "default", "uid": "odd"}, "spec": [], "status": 7}
        )
        world.put(2)
        await world.sees("job-0", "job-1", "job-2")

    play(scenario)
