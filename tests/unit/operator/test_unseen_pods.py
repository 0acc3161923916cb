"""Worker pods that their watch no longer shows: deleted, missed, or without their label. The last ones still run."""

from __future__ import annotations

import asyncio
import copy

import pytest

from conditions import until
from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.watch import pods as module
from elastrain_operator.watch.pods import WorkerPods

JOB = JobKeys("default", "job", "job-uid")


class World:
    """An API server with pods by name, a watch of them, and what the operator reports."""

    def __init__(self) -> None:
        self.pods: dict[str, dict] = {}
        self.events: asyncio.Queue = asyncio.Queue()
        self.reads = 0
        self.refusals: list[ApiError] = []
        self.gone: list[str] = []
        self.answers = asyncio.Event()
        """Reads are answered, with what they have found."""
        self.answers.set()
        self.store = WorkerPods(self, (), self._changed)

    def _changed(self, job, pod, gone) -> None:
        if gone:
            self.gone.append(pod.name)

    async def list_pages(self, path, what, query):
        yield [body for body in self.pods.values() if body["metadata"]["labels"]], "1"

    async def changes(self, path, what, query):
        while (event := await self.events.get()) is not None:
            yield {"type": event[0], "object": event[1]}
        raise ApiError("watch", 410, "Expired", "too old resource version")

    async def get_pod(self, namespace, name):
        self.reads += 1
        if self.refusals:
            raise self.refusals.pop()
        answer = self.pods.get(name)
        await self.answers.wait()
        return answer

    def show(self, kind: str, body: dict) -> None:
        self.events.put_nowait((kind, {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}}))

    def relist(self) -> None:
        """The API server's history is gone."""
        self.events.put_nowait(None)

    @property
    def known(self) -> list[str]:
        return [p.name for p in self.store.of(JOB)]


@pytest.fixture
def play(monkeypatch, pod_body):
    """``play(scenario)``: run ``scenario(world, worker)`` beside the operator's watch of one worker."""
    monkeypatch.setattr(module, "AGAIN", 0.02)
    worker = pod_body(0)

    def run(scenario) -> None:
        async def main() -> None:
            world = World()
            world.pods["job-0"] = worker
            task = asyncio.create_task(world.store.run())
            await world.store.listed(10)
            try:
                await asyncio.wait_for(scenario(world, worker), 10)
            finally:
                task.cancel()

        asyncio.run(main())

    return run


def bare(body: dict) -> dict:
    body = copy.deepcopy(body)
    body["metadata"]["labels"] = {}
    return body


def going(body: dict) -> dict:
    body = copy.deepcopy(body)
    body["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return body


@pytest.mark.parametrize("missed", [False, True], ids=["watched", "missed"])
def test_pod_that_loses_its_label_stays_its_job_s_worker_until_it_is_gone(play, missed):
    async def scenario(world, worker):
        world.pods["job-0"] = bare(worker)
        if missed:
            world.relist()
        else:
            world.show("DELETED", worker)
        await until(lambda: world.reads >= 2, "it is read again and again")
        assert (world.known, world.gone) == (["job-0"], [])
        del world.pods["job-0"]
        await until(lambda: world.gone, "its deletion")
        assert world.known == []

    play(scenario)


def test_pod_that_gets_its_label_back_is_not_read_any_more(play):
    async def scenario(world, worker):
        world.show("DELETED", worker)
        await until(lambda: world.reads, "a read")
        await asyncio.sleep(0.1)
        assert (world.reads, world.known) == (1, ["job-0"])

    play(scenario)


def test_pod_that_is_deleted_while_it_is_read_stays_gone(play):
    """Its records would stay in etcd for ever."""

    async def scenario(world, worker):
        world.answers.clear()
        world.show("DELETED", worker)
        await until(lambda: world.reads, "a read of the pod, which exists")
        world.show("ADDED", worker)
        world.show("DELETED", going(worker))
        await until(lambda: world.gone == ["job-0"], "its deletion")
        del world.pods["job-0"]
        world.answers.set()
        world.show("ADDED", {**worker, "metadata": {**worker["metadata"], "name": "job-1", "uid": "other"}})
        await until(lambda: "job-1" in world.known, "the answer, and an event after it")
        assert world.known == ["job-1"]

    play(scenario)


def test_deleted_pod_is_gone_at_once_and_without_a_read(play):
    async def scenario(world, worker):
        world.show("DELETED", going(worker))
        await until(lambda: world.gone == ["job-0"], "its deletion")
        assert (world.reads, world.known) == (0, [])

    play(scenario)


def test_pod_whose_deletion_was_missed_is_gone_by_the_next_list(play):
    async def scenario(world, worker):
        del world.pods["job-0"]
        world.relist()
        await until(lambda: world.gone == ["job-0"], "its deletion")
        assert world.reads == 1

    play(scenario)


def test_pod_that_was_being_deleted_is_gone_by_the_next_list_without_a_read(play):
    async def scenario(world, worker):
        world.show("MODIFIED", going(worker))
        del world.pods["job-0"]
        world.relist()
        await until(lambda: world.gone == ["job-0"], "its deletion")
        assert not world.reads

    play(scenario)


def test_pod_of_the_same_name_is_another_pod(play):
    async def scenario(world, worker):
        world.pods["job-0"] = {**worker, "metadata": {**worker["metadata"], "uid": "another"}}
        world.relist()
        await until(lambda: world.gone == ["job-0"], "its deletion")
        assert [p.uid for p in world.store.of(JOB)] == ["another"]
        assert not world.reads

    play(scenario)


def test_pod_is_kept_while_the_api_server_does_not_answer(play):
    async def scenario(world, worker):
        world.refusals = [ApiError("read pod", 0, "Unreachable", "refused") for _ in range(3)]
        del world.pods["job-0"]
        world.show("DELETED", worker)
        await until(lambda: world.reads >= 3, "three attempts")
        assert world.known == ["job-0"]
        await until(lambda: world.gone, "the answer")

    play(scenario)


def test_pod_that_another_watch_shows_without_its_label_is_its_job_s_worker(play):
    async def scenario(world, worker):
        body = bare(worker)
        body["metadata"] |= {"name": "job-1", "uid": "uid-1"}
        world.pods["job-1"] = body
        assert world.store.see(body)
        assert world.known == ["job-0", "job-1"]
        del world.pods["job-1"]
        await until(lambda: world.gone == ["job-1"], "its deletion")

    play(scenario)


def test_pod_that_another_watch_shows_and_that_is_no_worker_is_not_kept(play):
    async def scenario(world, worker):
        for meta in ({"ownerReferences": []}, {"name": "copy-of-job-0"}):
            assert not world.store.see({**worker, "metadata": {**worker["metadata"], "uid": "other", **meta}})
        assert world.known == ["job-0"]

    play(scenario)
