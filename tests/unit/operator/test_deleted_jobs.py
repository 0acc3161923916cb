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
        self.refused: set[str] = set()
        """Namespaces that may not be read."""
        self.answered: list[str] = []
        self.pods_of = {"a", "b"}
        self.seen: list[str] = []
        self.searched = asyncio.Event()
        self.gone: list[str] = []

    async def uids(self, path, what, query):
        namespace = path.split("/")[-2]
        if self.refusals:
            raise self.refusals.pop()
        self.answered.append(namespace)
        if self.answered[-2:] == ["a", "b"]:
            self.searched.set()
        if namespace in self.refused:
            raise ApiError("list jobs", 403, "Forbidden", f"jobs is forbidden in the namespace {namespace!r}")
        return set(self.lists[namespace])

    def jobs(self, interval: float = NEVER) -> Jobs:
        return Jobs(
            self, ("a", "b"), interval, known=lambda: self.known, has_pods_of=lambda name: name in self.pods_of,
            on_job=lambda body: self.seen.append(body["metadata"]["uid"]), on_deleted=self._forget,
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
            jobs.event(None, {"metadata": {"namespace": "a", "uid": "one"}})
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


def test_no_job_of_a_namespace_is_forgotten_if_its_list_fails_and_the_search_is_repeated(world):
    world.refusals = [ApiError("list jobs", 0, "Unreachable", "refused")]
    assert not asyncio.run(world.jobs().search()), "it is to be repeated"
    assert world.gone == []
    world.refusals = [ApiError("list jobs", 0, "Unreachable", "refused")]
    searched(world)
    assert world.gone == ["gone"]


def test_a_namespace_that_may_not_be_read_keeps_its_jobs_and_those_of_others_are_searched_for(world):
    world.refused = {"b"}
    assert asyncio.run(world.jobs().search()), "until somebody permits it, there is nothing to repeat"
    assert world.gone == ["gone"]
    assert "two" in world.known


def test_the_search_fails_if_no_namespace_may_be_read(world):
    world.refused = {"a", "b"}
    with pytest.raises(ApiError, match="'a'"):
        asyncio.run(world.jobs().search())
    assert world.gone == []


def test_jobs_wait_until_the_pods_of_their_namespace_are_known(world):
    world.pods_of = {"a"}
    jobs = world.jobs()
    for namespace, uid in (("a", "one"), ("b", "two"), ("b", "three")):
        jobs.event(None, {"metadata": {"namespace": namespace, "name": uid, "uid": uid}})
    jobs.pods_listed()
    assert world.seen == ["one"]
    world.known["three"] = JobKeys("b", "three", "three")
    jobs.event("DELETED", {"metadata": {"namespace": "b", "name": "three", "uid": "three"}})
    world.pods_of.add("b")
    jobs.pods_listed()
    jobs.pods_listed()
    assert world.seen == ["one", "two"]


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
    jobs = Jobs(
        World(), ("a",), NEVER, known=dict, has_pods_of=lambda _: True, on_job=seen.append, on_deleted=lambda _: None
    )
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 10**6}
    meta = {"namespace": "a", "name": "one", "uid": "one", "generation": 3, "labels": {"team": "a"}}
    given = {**meta, "annotations": None if notes is None else {**applied, **notes}}
    jobs.event("ADDED", {"metadata": {**given, "managedFields": [{"manager": "kubectl"}]}, "spec": {"maxReplicas": 1}})
    assert seen == [{"metadata": {**meta, "annotations": notes}, "spec": {"maxReplicas": 1}}]
