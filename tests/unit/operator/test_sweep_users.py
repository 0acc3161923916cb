"""Users of etcd whose jobs are gone: what is removed, and in which order."""

from __future__ import annotations

import asyncio

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdUnavailable
from elastrain_operator.records.sweep import Sweeper

GONE, HERE, SERVED = JobKeys("ns", "gone", "1"), JobKeys("ns", "here", "2"), JobKeys("ns", "served", "3")


class World:
    """API server, mirror and logins that record removals; ``users``: jobs with an etcd user."""

    def __init__(self, *users: JobKeys, error: Exception | None = None) -> None:
        self.records, self.users, self.error = {GONE, HERE, SERVED}, {GONE, HERE, SERVED, *users}, error
        self.calls: list[str] = []

    async def get_job(self, namespace, name):
        return {"metadata": {"uid": "2"}} if name == "here" else None

    def jobs_with_records(self):
        return self.records

    async def delete_records(self, keys):
        self.calls.append(f"records of {keys.job}")
        self.records.discard(keys)

    async def remove(self, keys):
        if self.error:
            raise self.error
        self.calls.append(f"user of {keys.job}")
        self.users.discard(keys)


class Mirror:
    def __init__(self, world: World) -> None:
        self.outage, self.jobs, self.delete_records = None, world.jobs_with_records, world.delete_records


class JobLogins:
    def __init__(self, world: World) -> None:
        self.remove = world.remove


def sweeper(world: World, *, with_users: bool = True) -> Sweeper:
    return Sweeper(world, Mirror(world), lambda keys: keys == SERVED, JobLogins(world) if with_users else None)


def test_the_user_is_removed_before_the_records_that_lead_to_it():
    world = World()
    asyncio.run(sweeper(world).sweep())
    assert world.calls == ["user of gone", "records of gone"]
    assert world.records == world.users == {HERE, SERVED}


def test_records_stay_if_the_user_could_not_be_removed():
    world = World(error=EtcdUnavailable("etcd:2379", "remove a user", "down"))
    asyncio.run(sweeper(world).sweep())
    assert GONE in world.records


def test_only_records_are_removed_if_jobs_have_no_users():
    world = World()
    asyncio.run(sweeper(world, with_users=False).sweep())
    assert world.calls == ["records of gone"]
