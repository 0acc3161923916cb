"""How ``decide`` forms, grows and shrinks a generation, by example. ``job`` is a job in memory (conftest.py)."""

from __future__ import annotations

from dataclasses import replace

from elastrain.api.records import Phase, Target
from elastrain.rendezvous.decide import Nothing, Propose, Wait, decide, remember


# ---- the first generation ------------------------------------------------------------------------------------------
def test_nothing_is_formed_if_there_is_no_target(job):
    job.target = None
    job.join("a")
    assert job.run() == Nothing("there is no target yet")


def test_nothing_is_formed_if_too_few_are_ready(job):
    job.target = Target(min=2, max=2, desired=2)
    job.join("a")
    job.join("b", ready=False)
    assert job.run() == Nothing("1 of at least 2 members are ready")


def test_first_generation_is_formed_at_once_if_all_desired_members_are_ready(job):
    job.target = Target(min=1, max=2, desired=2)
    job.join("a", "b", slots=4)
    action = job.run()
    assert isinstance(action, Propose)
    assert (action.generation.number, action.generation.reason) == (1, "Start")
    assert [(m.worker, m.rank_offset) for m in action.generation.members] == [("a", 0), ("b", 4)]


def test_first_generation_waits_for_the_settle_time_if_fewer_than_desired_are_ready(job):
    job.join("a")
    assert isinstance(job.run(), Wait)
    job.pass_time(job.timing.settle)
    job.join("b")
    job.run()
    assert job.workers() == ["a", "b"]


def test_no_more_than_desired_are_taken_if_more_are_ready(job):
    job.target = Target(min=1, max=4, desired=2)
    job.join("a", "b", "c")
    job.run()
    assert job.workers() == ["a", "b"]


def test_a_ready_member_is_not_taken_if_it_serves_no_store(job):
    job.join("a")
    job.set("a", store_port=0)
    assert job.run() == Nothing("0 of at least 1 members are ready")


def test_numbers_continue_if_etcd_lost_its_data_and_no_member_knows_them(job):
    job.target = Target(min=1, max=1, desired=1)
    job.join("a")
    view = replace(job.view(), highest=7)
    action = decide(view, remember(job.memory, view, job.now), job.now)
    assert isinstance(action, Propose)
    assert action.generation.number == 8


def test_only_the_oldest_acts(job):
    job.target = Target(min=1, max=2, desired=2)
    job.join("a", "b")
    view = job.view(self_id=job.seen("b").id)
    assert decide(view, job.memory, job.now) == Nothing(f"{job.seen('a').id} leads")


# ---- growing -------------------------------------------------------------------------------------------------------
def test_two_to_eight_is_one_change_if_all_warm_together(job):
    job.target = Target(min=1, max=8, desired=2)
    job.train("a", "b")
    job.target = Target(min=1, max=8, desired=8)
    newcomers = list("cdefgh")
    job.join(*newcomers, ready=False)
    for worker in newcomers:
        assert not isinstance(job.run(), Propose)
        job.ready(worker)
        job.pass_time(0.4)
    assert isinstance(job.run(), Propose)
    assert job.workers() == ["a", "b", *newcomers]
    assert len(job.generations) == 2


def test_growth_does_not_wait_longer_than_settle_if_a_member_stays_warming(job):
    job.train("a")
    job.join("slow", ready=False)
    job.join("b")
    assert isinstance(job.run(), Wait)
    job.pass_time(job.timing.settle)
    job.run()
    assert job.workers() == ["a", "b"]


def test_growth_waits_for_adoption_if_the_newest_generation_is_not_adopted(job):
    job.train("a")
    job.join("b")
    job.run()
    job.join("c")
    assert isinstance(job.run(), Wait)
    job.adopt()
    job.run()
    assert job.workers() == ["a", "b", "c"]


def test_growth_continues_if_the_newest_generation_is_not_adopted_for_too_long(job):
    job.train("a")
    job.join("hangs")
    job.run()
    job.join("c")
    job.run()
    job.pass_time(job.timing.adopt)
    job.run()
    assert job.workers() == ["a", "hangs", "c"]


def test_stock_agents_are_waited_for_if_they_must_stop_training_first(job):
    job.train("a")
    job.set("a", phase=Phase.WARMING)  # stock torchrun: ready only inside the rendezvous
    job.join("b")
    assert isinstance(job.run(), Nothing)
    job.fail("a")
    job.ready("a")
    job.run()
    assert job.workers() == ["a", "b"]
    assert job.base.reason == "Grow"


def test_no_member_is_removed_if_desired_shrinks(job):
    job.train("a", "b")
    job.target = Target(min=1, max=8, desired=1)
    assert isinstance(job.run(), Nothing)


# ---- leaving -------------------------------------------------------------------------------------------------------
def test_a_generation_without_it_is_formed_if_a_member_leaves(job):
    job.train("a", "b", "c")
    job.set("a", phase=Phase.LEAVING)
    job.run()
    assert job.workers() == ["b", "c"]
    assert job.base.reason == "Drain"


def test_the_targets_reason_is_used_if_the_target_names_the_leavers(job):
    job.train("a", "b")
    job.target = Target(min=1, max=8, desired=1, leaving=("b",), reason="ScaledDown")
    job.run()
    assert job.workers() == ["a"]
    assert job.base.reason == "ScaledDown"


def test_a_leave_does_not_wait_if_a_joiner_is_still_preparing(job):
    job.train("a", "b")
    job.join("slow")
    job.run()
    job.set("b", phase=Phase.LEAVING)
    job.run()
    assert job.workers() == ["a", "slow"]
