"""etcd loses data under a job that trains: what the operator says, does, and waits for."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from elastrain.api.records import Target
from elastrain_operator.facts import Coordination
from elastrain_operator.job.state import Plan
from elastrain_operator.policy.losses import data_loss
from elastrain_resource.job import Condition
from job_world import JobWorld


class World(JobWorld):
    def __init__(self) -> None:
        super().__init__(replicas=3, minReplicas=1, maxReplicas=4)
        for _ in range(6):
            self.round()
        assert self.training() == {"job-0", "job-1", "job-2"}
        self.trained_in = self.status.generation

    def round(self) -> Plan:
        made = self.operate()
        self.kubelet()
        self.agents()
        self.now += timedelta(seconds=1)
        return made

    @property
    def coordination(self) -> Condition:
        (found,) = [c for c in self.status.conditions if c.type == "CoordinationAvailable"]
        return found

    def lose(self, **kept: object) -> None:
        self.records = Coordination(highest=self.status.generation.number, **kept)


@pytest.fixture
def world() -> World:
    return World()


def test_lost_data_is_reported_and_the_target_is_written_again(world: World) -> None:
    world.lose()
    made = world.operate()
    assert (world.coordination.status, world.coordination.reason) == ("False", "DataLost")
    assert "holds no generation of this job" in world.coordination.message
    assert made.target is not None
    assert made.target.desired == 3
    assert made.target.above == world.trained_in.number, "members that know nothing must not give numbers twice"
    assert "DataLost" in [e.reason for e in made.events]
    assert world.status.generation == world.trained_in
    assert world.status.phase == "Running", "they train on"


def test_no_worker_is_lost_deleted_or_asked_to_leave_while_records_are_awaited(world: World) -> None:
    world.fields["replicas"] = 2
    world.lose()
    for _ in range(50):
        made = world.operate()
        world.now += timedelta(seconds=1)
        assert (made.delete, made.target.leaving if made.target else ()) == ((), ())
    assert (world.status.restarts.infrastructure, len(world.pods)) == (0, 3)


def test_the_condition_recovers_if_members_have_written_the_generation_again(world: World) -> None:
    before = world.records
    world.lose()
    target = world.operate().target
    world.records = dataclasses.replace(before, target=target)
    made = world.operate()
    assert (world.coordination.status, world.coordination.reason) == ("True", "Connected")
    assert "Connected" in [e.reason for e in made.events]
    assert made.target is None, "the floor of numbers stays as it is"


def test_an_old_snapshot_is_a_loss_of_data_too(world: World) -> None:
    newest = world.records.generation
    old = newest.model_copy(update={"number": newest.number + 7})
    world.status = world.status.model_copy(
        update={"generation": world.status.generation.model_copy(update={"number": old.number})}
    )
    world.records = dataclasses.replace(world.records, highest=old.number)
    made = world.operate()
    assert world.coordination.reason == "DataLost"
    assert f"holds generation {newest.number} of this job, and generation {old.number}" in world.coordination.message
    assert made.target is not None
    assert made.target.above == old.number


def test_what_etcd_holds_counts_after_a_minute_if_no_member_is_left_to_write(world: World) -> None:
    world.lose(target=Target(min=1, max=4, desired=3))
    world.operate()
    world.now += data_loss.PATIENCE
    world.operate()
    assert world.coordination.status == "True"
    assert world.status.ready_replicas == 0
    assert not [c for c in world.status.conditions if c.type == "Running" and c.status == "True"]


def test_an_outage_neither_begins_nor_ends_a_loss(world: World) -> None:
    assert data_loss.since(None, world.status, None, world.now) is None
    assert data_loss.since(world.now, world.status, None, world.now) == world.now


def test_the_floor_of_numbers_stays_after_the_loss(world: World) -> None:
    restored = dataclasses.replace(world.records, target=Target(min=1, max=4, desired=3, above=9))
    assert data_loss.floor(world.status, restored, lost=False) == 9
    assert data_loss.floor(world.status, dataclasses.replace(restored, highest=12), lost=True) == 12
