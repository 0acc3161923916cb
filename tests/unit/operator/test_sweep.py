"""Records of jobs that are gone: when they are checked, and what proves that they may be deleted."""

from __future__ import annotations

import asyncio

import pytest

from conditions import until
from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.records import sweep
from elastrain_operator.records.sweep import Sweeper

ONE, TWO, THREE = (JobKeys("ns", name, f"uid-{name}") for name in ("one", "two", "three"))


class World:
    """The mirror and the API server in one."""

    outage = None

    def __init__(self, *records: JobKeys) -> None:
        self.records = list(records)
        self.bodies: dict[str, dict] = {}
        self.served: set[JobKeys] = set()
        self.asked: list[str] = []
        self.error: ApiError | None = None

    def jobs(self):
        return list(self.records)

    def is_ours(self, keys):
        return keys in self.records

    async def delete_records(self, keys):
        self.records.remove(keys)

    async def get_job(self, namespace, name):
        self.asked.append(name)
        if self.error:
            error, self.error = self.error, None
            raise error
        return self.bodies.get(name)


def run(world: World, scenario) -> None:
    """Run ``scenario(sweeper)`` beside the sweeper, after its first sweep."""

    async def main():
        sweeper = Sweeper(world, world, lambda keys: keys in world.served)
        running = asyncio.create_task(sweeper.run())
        await asyncio.sleep(0.01)
        await asyncio.wait_for(scenario(sweeper), 10)
        running.cancel()

    asyncio.run(main())


def test_start_sweeps_records_of_unserved_jobs_that_no_longer_exist():
    world = World(ONE, TWO, THREE)
    world.served = {ONE}
    world.bodies["two"] = {"metadata": {"uid": TWO.uid}}

    async def scenario(_):
        await until(lambda: world.records == [ONE, TWO])

    run(world, scenario)
    assert "one" not in world.asked


def test_a_deletion_causes_a_check_of_that_job_only():
    world = World(ONE, TWO)
    world.served = {ONE, TWO}

    async def scenario(sweeper):
        world.served = set()
        sweeper.nudge(ONE)
        await until(lambda: world.records == [TWO])

    run(world, scenario)
    assert world.asked == ["one"]


def test_records_are_deleted_if_they_are_written_while_the_job_is_deleted(monkeypatch):
    monkeypatch.setattr(sweep, "LATE_WRITES", 0.05)
    world = World()

    async def scenario(sweeper):
        sweeper.nudge(ONE)
        await asyncio.sleep(0)
        world.records.append(ONE)  # the write was in flight
        await until(lambda: not world.records)

    run(world, scenario)


def test_records_of_an_earlier_job_are_deleted_if_the_name_is_reused():
    world = World(ONE)
    world.bodies["one"] = {"metadata": {"uid": "of-the-next-job"}}

    async def scenario(_):
        await until(lambda: not world.records)

    run(world, scenario)


def test_a_failed_sweep_is_repeated_later(monkeypatch):
    monkeypatch.setattr(sweep, "INTERVAL", 0.02)
    world = World(ONE)
    world.error = ApiError("read job", 503, "", "busy")

    async def scenario(_):
        await until(lambda: not world.records)

    run(world, scenario)
    assert world.asked == ["one", "one"]


def test_nothing_is_swept_while_etcd_is_not_known():
    world = World(ONE)
    world.outage = "etcd is out"

    async def scenario(sweeper):
        sweeper.nudge(ONE)
        await asyncio.sleep(0.02)

    run(world, scenario)
    assert world.records == [ONE]
    assert not world.asked


@pytest.mark.parametrize("foreign", [TWO])
def test_jobs_of_other_clusters_are_not_checked(foreign):
    world = World(ONE)
    world.served = {ONE}

    async def scenario(sweeper):
        sweeper.nudge(foreign)
        await asyncio.sleep(0.02)

    run(world, scenario)
    assert not world.asked
