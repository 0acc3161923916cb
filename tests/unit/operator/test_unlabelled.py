"""Worker pods whose label was removed: no selector shows them, and they still hold their accelerators."""

from __future__ import annotations

import asyncio
import copy

import pytest

from conditions import until
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.observe import unlabelled
from elastrain_operator.observe.watched import Watched

JOB = JobKeys("default", "job", "job-uid")


class World:
    """An API server with pods by name, and what the operator reports of them."""

    def __init__(self) -> None:
        self.pods: dict[str, dict] = {}
        self.reads = 0
        self.refusals: list[ApiError] = []
        self.gone: list[str] = []
        self.watched = Watched(
            self, (), 3600.0, jobs=dict, on_job=lambda _: None, on_job_gone=lambda _: None, on_pod=self._changed
        )

    def _changed(self, job, pod, gone) -> None:
        if gone:
            self.gone.append(pod.name)

    async def get_pod(self, namespace, name):
        self.reads += 1
        if self.refusals:
            raise self.refusals.pop()
        return self.pods.get(name)

    @property
    def known(self) -> list[str]:
        return [p.name for p in self.watched.pods.of(JOB)]


@pytest.fixture
def play(monkeypatch, pod_body):
    """``play(scenario)``: run ``scenario(world, worker)`` beside the operator's task."""
    monkeypatch.setattr(unlabelled, "AGAIN", 0.02)
    worker = pod_body(0)
    worker["metadata"]["labels"][names.LABEL_MANAGED_BY] = names.MANAGED_BY

    def run(scenario) -> None:
        async def main() -> None:
            world = World()
            task = asyncio.create_task(world.watched.unlabelled.run())
            world.pods["job-0"] = worker
            world.watched.pod_event("ADDED", worker)
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


def test_pod_that_loses_its_label_stays_its_job_s_worker_until_it_is_gone(play):
    async def scenario(world, worker):
        world.pods["job-0"] = bare(worker)
        world.watched.pod_event("DELETED", worker)
        await until(lambda: world.reads >= 2, "it is read again and again")
        assert (world.known, world.gone) == (["job-0"], [])
        del world.pods["job-0"]
        await until(lambda: world.gone, "its deletion")
        assert world.known == []

    play(scenario)


def test_pod_that_gets_its_label_back_is_not_read_any_more(play):
    async def scenario(world, worker):
        world.watched.pod_event("DELETED", worker)
        await until(lambda: world.reads, "a read")
        await asyncio.sleep(0.1)
        assert (world.reads, world.known) == (1, ["job-0"])

    play(scenario)


def test_deleted_pod_is_gone_at_once_and_without_a_read(play):
    async def scenario(world, worker):
        going = copy.deepcopy(worker)
        going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        world.watched.pod_event("DELETED", going)
        assert (world.gone, world.known) == (["job-0"], [])
        await asyncio.sleep(0.05)
        assert not world.reads

    play(scenario)


def test_pod_of_the_same_name_is_another_pod(play):
    async def scenario(world, worker):
        world.pods["job-0"]["metadata"]["uid"] = "another"
        world.watched.unlabelled.doubt("uid-0")
        await until(lambda: world.gone, "its deletion")

    play(scenario)


def test_pod_is_kept_while_the_api_server_does_not_answer(play):
    async def scenario(world, worker):
        world.refusals = [ApiError("read pod", 0, "Unreachable", "refused") for _ in range(3)]
        del world.pods["job-0"]
        world.watched.pod_event("DELETED", worker)
        await until(lambda: world.reads >= 3, "three attempts")
        assert world.known == ["job-0"]
        await until(lambda: world.gone, "the answer")

    play(scenario)


def test_pod_that_another_watch_shows_without_its_label_is_its_job_s_worker(play):
    async def scenario(world, worker):
        body = bare(worker)
        body["metadata"] |= {"name": "job-1", "uid": "uid-1"}
        world.pods["job-1"] = body
        world.watched.unlabelled.see(body)
        assert world.known == ["job-0", "job-1"]
        del world.pods["job-1"]
        await until(lambda: world.gone == ["job-1"], "its deletion")

    play(scenario)
