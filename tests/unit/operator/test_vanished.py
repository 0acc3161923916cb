"""The search for objects that were deleted while their watch was interrupted."""

from __future__ import annotations

import asyncio

import pytest

from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.observe import vanished
from elastrain_operator.observe.vanished import Kind, Search
from elastrain_operator.observe.watched import Watched

NEVER = 3600.0


class World:
    """Lists of two namespaces, and the objects that the operator knows."""

    def __init__(self) -> None:
        self.lists: dict[str, set[str]] = {"/a/things": {"one"}, "/b/things": {"two"}}
        self.known = {"one", "two"}
        self.queries: list[dict[str, str]] = []
        self.refusals: list[ApiError] = []
        self.searched = asyncio.Event()

    async def uids(self, path, what, query):
        assert what == "list things"
        self.queries.append(query)
        if self.refusals:
            raise self.refusals.pop()
        if path == "/b/things":
            self.searched.set()
        return set(self.lists[path])

    def search(self, interval: float = NEVER) -> Search:
        kind = Kind(
            "things", tuple(self.lists), lambda: set(self.known), self.known.discard, query={"labelSelector": "mine"}
        )
        return Search(self, (kind,), interval)


@pytest.fixture
def world(monkeypatch) -> World:
    monkeypatch.setattr(vanished, "SETTLE", 0.001)
    monkeypatch.setattr(vanished, "REST", 0.001)
    return World()


def searched(world: World, interval: float = NEVER, *, nudged: bool = True) -> None:
    """Runs until one search is complete."""

    async def main() -> None:
        search = world.search(interval)
        running = asyncio.create_task(search.run())
        if nudged:
            search.nudge()
        async with asyncio.timeout(10):
            await world.searched.wait()
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())


def test_objects_that_no_list_shows_are_forgotten(world):
    world.known |= {"gone"}
    searched(world)
    assert world.known == {"one", "two"}
    assert world.queries == [{"labelSelector": "mine"}] * 2


def test_object_that_appears_during_the_search_is_kept(world):
    whole = world.uids

    async def uids(*args):
        found = await whole(*args)
        world.known.add("new")
        return found

    world.uids = uids
    searched(world)
    assert world.known == {"one", "two", "new"}


def test_nothing_is_forgotten_if_one_list_fails_and_the_search_is_repeated(world):
    world.known |= {"gone"}
    world.refusals = [ApiError("list things", 0, "Unreachable", "refused")]

    async def failing() -> None:
        with pytest.raises(ApiError):
            await world.search().search()

    asyncio.run(failing())
    assert world.known == {"one", "two", "gone"}
    world.refusals = [ApiError("list things", 0, "Unreachable", "refused")]
    searched(world)
    assert world.known == {"one", "two"}


def test_search_is_regular_if_nothing_is_listed(world):
    world.known |= {"gone"}
    searched(world, 0.01, nudged=False)
    assert world.known == {"one", "two"}


class Gone:
    """The API server's lists: while jobs are listed, the watch shows that one of them is deleted."""

    def __init__(self, jobs: dict[str, JobKeys]) -> None:
        self._jobs = jobs

    async def uids(self, path, what, query):
        self._jobs.pop("gone", None)
        return set()


def test_a_job_whose_deletion_the_watch_shows_during_the_search_ends_nothing():
    """Else the operator's process would end."""
    jobs, told = {"gone": JobKeys("ns", "a", "gone"), "missed": JobKeys("ns", "b", "missed")}, []
    watched = Watched(Gone(jobs), (), NEVER, jobs=lambda: jobs, on_job=print, on_job_gone=told.append, on_pod=print)
    asyncio.run(watched._search.search())
    assert told == [JobKeys("ns", "b", "missed")]
