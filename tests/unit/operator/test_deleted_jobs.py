"""The search for jobs whose deletion kopf's watch has not shown."""

from __future__ import annotations

import asyncio

import pytest

from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.watch import jobs as module
from elastrain_operator.watch.jobs import Jobs

NEVER = 3600.0


class World:
    """Lists of two namespaces, and the jobs that the operator knows."""

    def __init__(self) -> None:
        self.lists: dict[str, set[str]] = {"a": {"one"}, "b": {"two"}}
        self.known = {uid: JobKeys(namespace, uid, uid) for namespace, uid in (("a", "one"), ("b", "two"))}
        self.refusals: list[ApiError] = []
        self.searched = asyncio.Event()
        self.gone: list[str] = []

    async def uids(self, path, what, query):
        if self.refusals:
            raise self.refusals.pop()
        namespace = path.split("/")[-2]
        if namespace == "b":
            self.searched.set()
        return set(self.lists[namespace])

    def jobs(self, interval: float = NEVER) -> Jobs:
        return Jobs(
            self, ("a", "b"), interval, known=lambda: self.known, on_job=lambda _: None, on_deleted=self._forget
        )  # fmt: skip

    def _forget(self, job: JobKeys) -> None:
        self.gone.append(job.uid)
        del self.known[job.uid]


@pytest.fixture
def world(monkeypatch) -> World:
    monkeypatch.setattr(module, "SETTLE", 0.001)
    monkeypatch.setattr(module, "REST", 0.001)
    world = World()
    world.known["gone"] = JobKeys("a", "gone", "gone")
    return world


def searched(world: World, interval: float = NEVER, *, listed: bool = True) -> None:
    """Runs until one search is complete."""

    async def main() -> None:
        jobs = world.jobs(interval)
        running = asyncio.create_task(jobs.run())
        if listed:
            jobs.event(None, {"metadata": {}})
        async with asyncio.timeout(10):
            await world.searched.wait()
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())


def test_jobs_that_no_list_shows_are_forgotten_after_a_list_by_kopf(world):
    searched(world)
    assert world.gone == ["gone"]


def test_a_job_that_appears_during_the_search_is_kept(world):
    whole = world.uids

    async def uids(*args):
        found = await whole(*args)
        world.known["new"] = JobKeys("a", "new", "new")
        return found

    world.uids = uids
    searched(world)
    assert world.gone == ["gone"]


def test_no_job_is_forgotten_if_one_list_fails_and_the_search_is_repeated(world):
    world.refusals = [ApiError("list jobs", 0, "Unreachable", "refused")]
    with pytest.raises(ApiError):
        asyncio.run(world.jobs().search())
    assert world.gone == []
    world.refusals = [ApiError("list jobs", 0, "Unreachable", "refused")]
    searched(world)
    assert world.gone == ["gone"]


def test_the_search_is_regular_if_nothing_is_listed(world):
    searched(world, 0.01, listed=False)
    assert world.gone == ["gone"]


def test_a_job_whose_deletion_the_watch_shows_during_the_search_is_forgotten_once(world):
    whole = world.uids

    async def uids(*args):
        world.known.pop("gone", None)
        return await whole(*args)

    world.uids = uids
    searched(world)
    assert world.gone == []


@pytest.mark.parametrize("notes", [{}, {"kueue.x-k8s.io/note": "kept"}, None])
def test_copies_of_the_spec_in_the_metadata_are_not_kept(notes):
    """``kubectl apply`` writes the whole manifest into an annotation: 1 MB more for a job of 1 MB."""
    seen: list[dict] = []
    jobs = Jobs(World(), ("a",), NEVER, known=dict, on_job=seen.append, on_deleted=lambda _: None)
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 10**6}
    meta = {"namespace": "a", "name": "one", "uid": "one", "generation": 3, "labels": {"team": "a"}}
    given = {**meta, "annotations": None if notes is None else {**applied, **notes}}
    jobs.event("ADDED", {"metadata": {**given, "managedFields": [{"manager": "kubectl"}]}, "spec": {"maxReplicas": 1}})
    assert seen == [{"metadata": {**meta, "annotations": notes}, "spec": {"maxReplicas": 1}}]
