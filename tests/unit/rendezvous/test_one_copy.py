"""All members hold one copy of the state together (``shards: all``): after a loss none of its parts may leave."""

from __future__ import annotations

import pytest

from elastrain.api.records import Phase, Target
from elastrain.rendezvous.decide import Nothing


@pytest.fixture
def job(make_job):
    job = make_job(one_copy=True, target=Target(min=1, max=3, desired=3))
    job.train("a", "b", "c")
    return job


def leave(job, worker: str) -> None:
    job.target = Target(min=1, max=3, desired=2, leaving=(worker,))


def test_members_leave_by_a_planned_change_if_none_is_lost(job):
    leave(job, "c")
    job.run()
    assert job.workers() == ["a", "b"]


@pytest.mark.parametrize("proposed", [False, True], ids=["before the change", "while it is proposed"])
def test_a_leaver_enters_one_more_generation_if_another_member_is_lost(job, proposed):
    leave(job, "c")
    if proposed:
        job.run()
    job.die("a")
    job.run()
    assert (job.workers(), job.base.reason) == (["c", "b"], "Lost")
    assert isinstance(job.run(), Nothing), "c gives its part before it leaves"
    job.adopt()
    job.run()
    assert job.workers() == ["b"]


def test_a_joiner_waits_for_the_room_of_a_leaver_that_gives_its_part_after_a_loss(job):
    leave(job, "c")
    job.die("a")
    job.join("d", "e")
    job.target = job.target.model_copy(update={"desired": 3})
    job.run()
    assert job.workers() == ["c", "b", "d"]
    job.adopt()
    job.run()
    assert job.workers() == ["b", "d", "e"]


def test_a_leaver_that_has_given_its_part_is_not_awaited_if_a_member_is_lost_then(job):
    leave(job, "c")
    job.run()
    job.adopt()
    job.set("c", generation=job.base.number)
    job.die("a")
    job.run()
    assert job.workers() == ["b"]


def test_replicas_leave_at_once_if_another_one_is_lost(make_job):
    job = make_job(target=Target(min=1, max=3, desired=3))
    job.train("a", "b", "c")
    job.set("c", phase=Phase.LEAVING)
    job.die("a")
    job.run()
    assert job.workers() == ["b"]
