"""Groups of several workers: a generation has whole groups only. ``a0`` and ``a1`` are the two workers of group a."""

from __future__ import annotations

import pytest

from elastrain.api.records import Member, Phase, Target
from elastrain.rendezvous import groups
from elastrain.rendezvous.decide import Nothing


@pytest.fixture
def job(make_job):
    """Of one to four groups, two wanted."""
    return make_job(group_size=2, target=Target(min=2, max=8, desired=4))


def test_a_group_trains_only_with_all_its_workers(job):
    job.join("a0", "b0")
    assert isinstance(job.run(), Nothing)
    job.join("b1")
    job.run()
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["b0", "b1"]


def test_no_records_are_compared_with_each_other_by_a_generation_that_waits_for_members(make_job, monkeypatch):
    job, compared = make_job(target=Target(min=99, max=99, desired=99)), []
    job.join(*(f"m{number}" for number in range(50)))
    equal = Member.__eq__
    monkeypatch.setattr(Member, "__eq__", lambda one, other: compared.append(one) or equal(one, other))
    assert job.run().reason == "50 of at least 99 members are ready"
    assert len(compared) < 50, "each member's record with all others: a lease of 4,096 members ran out meanwhile"


def test_a_missing_worker_is_named_by_those_who_wait_for_it(job):
    job.join("a0", "b0")
    assert job.run().reason == "0 of at least 2 members are ready; a0, b0 wait for other workers of their groups"
    assert job.run().changes == 1, "one more member can be enough"


def test_members_are_in_the_order_of_their_places_in_whichever_order_they_came(job):
    job.join("a1", "b1", "b0", "a0")
    job.run()
    assert job.workers() == ["a0", "a1", "b0", "b1"]


def test_the_other_group_trains_on_and_the_mate_stands_by_if_a_worker_is_lost(job):
    job.train("a0", "a1", "b0", "b1")
    job.die("a0")
    job.run()
    assert (job.workers(), job.base.reason) == (["b0", "b1"], "Lost")
    job.adopt()
    assert isinstance(job.run(), Nothing)
    assert job.seen("a1").record.phase is Phase.READY


def test_the_group_returns_if_the_hole_is_filled(job):
    job.train("a0", "a1", "b0", "b1")
    job.die("a0")
    job.run()
    job.adopt()
    job.join("a0", incarnation=7)
    job.run()
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["b0", "b1", "a0", "a1"]


def test_the_only_group_waits_and_goes_on_with_another_worker_in_the_place_of_the_lost_one(job):
    job.train("a0", "a1")
    job.die("a1")
    job.run()
    job.pass_time(job.timing.notify)
    job.run()
    assert 1 in job.notified, "the mate leaves the generation that is over"
    job.join("a1", incarnation=7)
    job.pass_time(job.timing.holder)
    job.run()
    assert job.workers() == ["a0", "a1"]


def test_a_whole_spare_group_takes_the_place_of_one_with_a_hole(job):
    job.train("a0", "a1", "b0", "b1")
    job.join("c0", "c1")
    assert isinstance(job.run(), Nothing), "it stands by"
    job.die("a1")
    job.run()
    assert job.workers() == ["b0", "b1", "c0", "c1"]


def test_the_other_group_trains_on_if_one_worker_of_a_group_leaves(job):
    job.train("a0", "a1", "b0", "b1")
    job.set("a1", phase=Phase.LEAVING)
    job.run()
    assert (job.workers(), job.base.reason) == (["b0", "b1"], "Drain")


def test_the_only_group_stops_and_saves_before_another_worker_takes_the_place_of_one_that_leaves(job):
    job.train("a0", "a1")
    job.set("a1", phase=Phase.LEAVING)
    job.join("x1", group=ord("a"))
    job.run()
    assert (job.workers(), job.base.reason) == ([], "Stop")
    job.adopt()
    job.run()
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["a0", "x1"]


def test_a_leaving_group_gives_its_state_to_a_joining_one_before_it_leaves(job):
    job.train("a0", "a1")
    job.set("a0", phase=Phase.LEAVING)
    job.join("c0", "c1")
    job.run()
    assert job.workers() == ["a0", "a1", "c0", "c1"], "the mate of the leaving worker holds a part of the state"


def test_the_state_is_not_left_behind_in_a_pause_if_a_former_mate_holds_a_part_of_it(job):
    job.train("a0", "a1", "b0", "b1")
    job.die("b1")
    job.run()
    assert job.workers() == ["a0", "a1"]
    job.join("c0", "c1")
    job.run()
    job.pass_time(job.timing.adopt)
    job.run()
    assert job.workers() == ["a0", "a1", "c0", "c1"]
    job.die("a0")
    job.run()
    assert job.memory.breaks == 2, "new members would wait now"
    assert job.workers() == ["b0", "a1", "c0", "c1"], "a and c without b0 would begin anew"


def test_the_later_of_two_that_claim_a_place_has_it_if_neither_trains(job):
    job.join("a0", "a1")
    job.join("x1", group=ord("a"))
    job.run()
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["a0", "x1"]


@pytest.mark.parametrize(("workers", "covers"), [("", False), ("a0", False), ("a0 b0", False), ("a0 b1", True)])
def test_workers_hold_the_whole_state_if_they_have_all_places(job, workers, covers):
    job.join(*workers.split())
    assert groups.cover(job.members.values()) is covers


def test_workers_of_two_groups_train_together_if_only_so_the_state_is_kept(job):
    """And return to their own groups when all of these are whole again, not before."""
    job.train("a0", "a1", "b0", "b1")
    job.die("a1", "b0")
    job.run()
    assert job.workers() == ["a0", "b1"]
    job.adopt()
    job.join("a1", incarnation=7)
    job.run()
    job.pass_time(job.timing.settle)
    assert isinstance(job.run(), Nothing), "b1 holds a part of the state"
    job.join("b0", incarnation=7)
    job.run()
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["a0", "a1", "b0", "b1"]


def test_no_generation_lacks_a_part_of_the_state_if_another_worker_is_found_dead_only_later(job):
    job.train("a0", "a1", "b0", "b1")
    job.die("b0")
    job.run()
    assert job.workers() == ["a0", "a1"]
    job.die("a1")
    job.join("a1", incarnation=7)
    job.run()
    job.pass_time(job.timing.backoff)
    job.run()
    assert job.workers() == ["a0", "b1"], "the new a1 holds nothing"


def test_workers_of_two_groups_do_not_mix_if_a_whole_group_holds_the_state(job):
    job.target = Target(min=2, max=8, desired=6)
    job.train("a0", "a1", "b0", "b1", "c0", "c1")
    job.die("a1", "b0")
    job.run()
    assert job.workers() == ["c0", "c1"]
