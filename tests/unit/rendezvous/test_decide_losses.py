"""``decide`` after losses, and its bounds, by example. ``job`` is a job in memory (conftest.py)."""

from __future__ import annotations

import pytest

from elastrain.api.records import Phase, Target
from elastrain.rendezvous.decide import MAX_OUTSTANDING, Condemn, Nothing, Propose, Timing, Wait


# ---- losses --------------------------------------------------------------------------------------------------------
def test_survivors_continue_at_once_if_a_member_is_lost(job):
    job.train("a", "b", "c")
    job.die("a")
    action = job.run()
    assert isinstance(action, Propose)
    assert (job.workers(), job.base.reason) == (["b", "c"], "Lost")


def test_a_member_counts_as_lost_if_its_worker_registers_again(job):
    job.train("a", "b")
    job.join("b", ready=False)
    job.run()
    assert job.workers() == ["a"]


def test_the_lost_holder_of_the_state_is_awaited_if_the_others_have_none(job):
    """Its lease expired, but it lives: without it the joiner would begin at step 0."""
    job.target = Target(min=1, max=2, desired=2)
    job.train("a")
    job.join("b")
    job.run()
    lost = job.seen("a")
    job.die("a")
    job.pass_time(1.0)
    job.run()
    assert "a may return" in job.decide().what_for
    job.members[lost.id] = lost
    job.run()
    assert job.workers() == ["a", "b"]


def test_none_is_formed_while_a_member_has_yet_to_write_its_generation_again_that_etcd_has_lost(job):
    """Else the joiners would begin at step 0 beside it."""
    job.train("a", "b")
    lost, job.generations[:] = job.base, []
    job.die("a")
    job.join("c", "d")
    job.set("b", generation=lost.number)
    job.pass_time(job.timing.settle)
    action = job.run()
    assert isinstance(action, Wait)
    assert action.what_for == "b to write the generation again that etcd has lost"
    job.generations.append(lost)
    job.run()
    assert (job.workers(), job.base.number) == (["b", "c", "d"], lost.number + 1)


def test_a_generation_that_nobody_writes_again_is_awaited_for_a_bounded_time_and_then_ended(job):
    """A rank of it may wait for a lost peer of which no leader knows."""
    job.join("a", "b")
    job.set("b", generation=7)
    job.decide()
    job.pass_time(job.timing.reenter)
    job.decide()
    job.pass_time(job.timing.settle)
    assert isinstance(job.run(), Propose)
    assert (job.base.number, job.base.ended) == (8, (7,))


def test_leavers_enter_no_further_generation_if_a_joiner_holds_the_state_already(job):
    job.train("a", "b")
    job.target = Target(min=1, max=2, desired=1, leaving=("b",))
    job.run()
    assert job.workers() == ["a"]
    job.target = Target(min=1, max=2, desired=1, leaving=("a",))
    job.run()
    assert job.workers() == ["b"], "it has not left the generation that trains"


def test_leavers_give_their_state_if_a_joiner_holds_only_a_former_one(job):
    job.train("a", "b")
    job.target = Target(min=1, max=2, desired=1, leaving=("b",))
    job.run()
    job.adopt()
    job.target = Target(min=1, max=2, desired=1, leaving=("a",))
    job.run()
    assert job.workers() == ["a", "b"]
    assert not isinstance(job.run(), Propose), "a stays until b has its state"


def test_the_others_begin_without_the_state_if_no_holder_returns_in_time(job):
    job.train("a")
    job.join("b")
    job.die("a")
    job.run()
    job.pass_time(max(job.timing.holder, job.timing.settle))
    job.run()
    assert job.workers() == ["b"]


@pytest.mark.parametrize("broken", [False, True])
def test_all_stop_before_new_members_begin_if_nobody_stays(job, broken):
    """Otherwise the joiner would begin at step 0 while the member with the state still trains."""
    job.target = Target(min=1, max=1, desired=1)
    job.train("a")
    job.join("b")
    job.target = Target(min=1, max=1, desired=1, leaving=("a",))
    if broken:
        job.fail("a")
    job.run()
    assert (job.workers(), job.base.reason) == ([], "Stop")
    if not broken:
        assert isinstance(job.run(), Wait)
        job.adopt()
    job.run()
    assert (job.workers(), job.base.reason) == (["b"], "Start")


@pytest.mark.parametrize("end", ["left", "anew"])
def test_no_lost_holder_is_awaited_if_it_cannot_return(job, end):
    job.target = Target(min=1, max=2, desired=2)
    job.train("a")
    job.join("b")
    job.run()
    if end == "left":
        job.set("a", phase=Phase.LEAVING)
    job.die("a")
    if end == "anew":
        job.join("a", ready=False)
    job.run()
    assert job.workers() == ["b"]


def test_survivors_wait_if_they_are_too_few(job):
    job.target = Target(min=2, max=2, desired=2)
    job.train("a", "b")
    job.die("b")
    job.run()
    assert job.run() == Nothing("1 of at least 2 members are left")
    job.join("c")
    job.run()
    assert job.workers() == ["a", "c"]


def test_a_new_generation_follows_if_a_lost_member_returns_after_all_were_notified(job):
    """Too few members were left for a next generation, so they were notified; then the lost lease was renewed."""
    job.target = Target(min=2, max=2, desired=2)
    job.train("a", "b")
    lost = job.seen("a")
    job.die("a")
    assert job.run() == Condemn((1,), "worker a is gone")
    job.members[lost.id] = lost
    job.run()
    job.pass_time(job.timing.doubt)
    job.run()
    assert (job.workers(), job.base.number) == (["a", "b"], 2)


def test_a_silent_member_is_not_passed_over_before_its_lease_has_ended(job):
    """It may have committed the step that the others have given up."""
    job.train("a", "b", "c")
    job.fail("a", "b")
    for _ in range(20):
        job.run()
        job.pass_time(0.2)
        assert job.workers() == ["a", "b", "c"]
    job.die("c")
    job.run()
    assert job.workers() == ["a", "b"]


def test_the_same_members_continue_if_a_generation_breaks_and_all_live(job):
    job.train("a", "b")
    job.fail("a")
    assert isinstance(job.run(), Wait)
    job.now += Timing().doubt
    job.run()
    assert (job.workers(), job.base.reason) == (["a", "b"], "Broken")


def test_the_lost_member_is_left_out_if_its_end_shows_just_after_its_peers_failure(job):
    job.train("a", "b", "c")
    job.fail("a", "b")
    assert isinstance(job.run(), Wait)
    job.die("c")
    job.run()
    assert (job.workers(), job.base.number, job.base.reason) == (["a", "b"], 2, "Lost")


def test_a_loop_of_broken_generations_backs_off(job):
    job.train("a", "b")
    pauses = []
    for _ in range(8):
        job.fail("a", "b")
        failed = job.now
        while isinstance(action := job.run(), Wait | Condemn):
            job.now = action.until if isinstance(action, Wait) else job.now
        assert job.base.reason == "Broken"
        pauses.append(job.now - failed)
        job.adopt()
    assert pauses == pytest.approx([Timing().doubt, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])


def test_the_pause_is_forgotten_if_a_step_was_committed(job):
    job.train("a", "b")
    for _ in range(5):
        job.step += 1
        job.fail("a", "b")
        job.run()
        job.now += Timing().doubt
        assert isinstance(job.run(), Propose)
        job.adopt()


def test_survivors_do_not_pause_if_a_loss_follows_a_series_of_failures(job):
    job.train("a", "b")
    for _ in range(2):
        job.fail("a", "b")
        job.run()
        job.pass_time(job.timing.backoff)
        job.run()
        job.adopt()
    job.die("b")
    assert isinstance(job.run(), Propose)
    assert job.workers() == ["a"]


def test_the_wait_for_stock_agents_is_bounded_if_a_generation_broke(job):
    job.train("a", "b", "c")
    for worker in "abc":
        job.set(worker, phase=Phase.WARMING)
    job.fail("b", "c")
    job.ready("b", "c")
    assert isinstance(job.run(), Wait)
    job.pass_time(job.timing.reenter)
    job.run()
    assert job.workers() == ["b", "c"]


# ---- notifications of a loss ---------------------------------------------------------------------------------------
def test_the_next_generation_names_what_it_replaces_if_a_member_is_lost(job):
    job.train("a", "b", "c")
    job.die("c")
    job.run()
    assert (job.base.ended, job.base.why) == ((1,), "worker c is gone")
    job.adopt()
    assert isinstance(job.run(), Nothing), "notified once"


def test_a_planned_change_ends_nothing(job):
    job.train("a", "b", "c")
    job.set("c", phase=Phase.LEAVING)
    job.run()
    job.adopt()
    job.die("c")
    assert isinstance(job.run(), Nothing)
    assert job.base.ended == ()


def test_only_the_proposal_is_ended_if_only_a_joiner_dies(job):
    job.train("a", "b")
    job.join("c")
    job.run()
    job.die("c")
    job.run()
    assert (job.base.number, job.base.ended) == (3, (2,))


def test_both_are_ended_if_a_member_of_both_dies(job):
    job.train("a", "b")
    job.join("c")
    job.run()
    job.die("b")
    job.run()
    assert (job.base.number, job.base.ended) == (3, (1, 2))


def test_survivors_are_notified_if_they_are_too_few(job):
    job.target = Target(min=2, max=2, desired=2)
    job.train("a", "b")
    job.die("b")
    assert job.run() == Condemn((1,), "worker b is gone")
    assert job.run() == Nothing("1 of at least 2 members are left")
    job.join("c")
    job.run()
    assert job.workers() == ["a", "c"]


def test_survivors_are_notified_if_the_next_generation_must_wait(job):
    job.train("a", "b", "c")
    job.fail("a")
    job.set("c", phase=Phase.WARMING)
    action = job.run()
    assert isinstance(action, Wait)
    assert action.until == job.now + job.timing.notify
    job.pass_time(job.timing.notify)
    assert job.run() == Condemn((1,), "worker a reports a broken collective")
    assert isinstance(job.run(), Wait)


def test_training_members_are_notified_if_a_leaver_dies_before_they_have_switched(job):
    job.train("a", "b")
    job.set("b", phase=Phase.LEAVING)
    job.run()
    job.die("b")
    assert job.run() == Condemn((1,), "worker b is gone")
    assert job.workers() == ["a"]


def test_a_generation_is_adopted_by_all_if_one_member_reports_it(job):
    job.train("a", "b", "c")
    job.run()
    assert [m.record.generation for m in job.view().members] == [1, 0, 0]
    assert job.view().adopted and not job.view().entered
    assert job.view().in_force == 1


def test_an_ended_generation_is_not_in_force_without_a_report(job):
    job.train("a", "b")
    job.notified[1] = "worker x is gone"
    assert job.view().in_force is None


# ---- the end, and bounds -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["progress", "member"])
def test_nothing_is_formed_if_the_job_has_finished(job, how):
    job.train("a", "b")
    if how == "progress":
        job.finished = True
    else:
        job.set("a", phase=Phase.FINISHED)
    job.die("b")
    assert job.run() == Condemn((1,), "worker b is gone")
    assert job.run() == Nothing("the job has ended")


def test_proposals_are_bounded_if_none_is_adopted(job):
    job.train("a", "b")
    for number in range(20):
        job.join(f"j{number}")
        job.run()
        job.pass_time(job.timing.adopt)
        job.run()
        job.die(f"j{number}")
        job.run()
        job.pass_time(job.timing.backoff_max)
    assert job.base.number == 1 + MAX_OUTSTANDING
    assert job.workers() == ["a", "b"], "the last slot must hold only members that train"
    job.adopt()
    job.join("late")
    job.run()
    assert job.workers() == ["a", "b", "late"]


def test_the_last_slot_holds_no_joiner_if_another_one_dies(job):
    """It might die as well; then that proposal could never be adopted, and no further one could be made."""
    job.train("a", "b")
    while job.base.number < MAX_OUTSTANDING:
        job.join("j", "k")
        job.run()
        job.pass_time(job.timing.adopt)
        job.run()
        if job.base.number < MAX_OUTSTANDING:
            job.die("j", "k")
            job.run()
            job.pass_time(job.timing.backoff_max)
    assert job.workers() == ["a", "b", "j", "k"]
    job.die("j")
    job.run()
    assert (job.base.number, job.workers()) == (1 + MAX_OUTSTANDING, ["a", "b"])


def test_the_bound_is_lifted_if_the_generation_in_force_breaks(job):
    job.train("a", "b")
    while job.base.number < 1 + MAX_OUTSTANDING:
        job.join("j")
        job.run()
        job.pass_time(job.timing.adopt)
        job.die("j")
        job.run()
        job.pass_time(job.timing.backoff_max)
    assert isinstance(job.run(), Nothing)
    job.die("b")
    job.run()
    assert (job.workers(), 1 in job.base.ended) == (["a"], True)


def test_nothing_changes_before_the_missing_members_are_ready(job):
    job.target = Target(min=5, max=8, desired=8)
    job.join("a", "b")
    action = job.run()
    assert isinstance(action, Nothing) and action.changes == 3
    for worker in "cd":
        job.join(worker)
        assert isinstance(job.decide(), Nothing)
    job.join("e")
    assert not isinstance(job.decide(), Nothing)


def test_the_only_member_with_the_state_leaves_when_another_one_has_received_it(job):
    job.target = Target(min=1, max=3, desired=2)
    job.train("a")
    job.join("b")
    job.target = Target(min=1, max=3, desired=1, leaving=("a",))
    job.run()
    assert (job.workers(), job.base.reason) == (["a", "b"], "Replace")
    job.run()
    assert job.workers() == ["a", "b"], "proposed, but not adopted"
    job.set("b", generation=job.base.number, learning=True)
    job.adopt()
    waits = job.run()
    assert job.workers() == ["a", "b"]
    assert waits == Nothing("b must receive the state that only a holds")
    job.set("b", learning=False)
    job.run()
    assert (job.workers(), job.base.reason) == (["b"], "Drain")


def test_the_only_member_with_the_state_stays_if_the_generation_breaks_while_it_leaves(job):
    job.target = Target(min=1, max=3, desired=3)
    job.train("a", "b")
    job.join("c")
    job.run()
    job.set("c", generation=job.base.number, learning=True)
    job.adopt()
    job.target = Target(min=1, max=3, desired=2, leaving=("a",))
    job.run()
    job.die("b")
    job.run()
    assert (job.workers(), job.base.reason) == (["a", "c"], "Lost")
    job.adopt()
    job.set("c", learning=False, generation=job.base.number)
    job.run()
    assert job.workers() == ["c"]


def test_members_that_received_only_a_part_do_not_begin_without_one_that_may_return(job):
    job.target = Target(min=1, max=3, desired=2)
    job.train("a")
    job.join("b")
    job.run()
    job.set("b", generation=job.base.number, learning=True)
    job.adopt()
    job.die("a")
    assert isinstance(job.run(), Wait)
    job.pass_time(job.timing.holder)
    job.run()
    assert job.workers() == ["b"]


# ---- after training ------------------------------------------------------------------------------------------------
def test_generation_is_over_if_rank_0_is_lost_after_training_and_before_its_script_has_ended(job):
    job.train("a", "b", "c")
    for worker in "abc":
        job.set(worker, phase=Phase.FINISHED)
    job.die("c")
    assert job.decide() == Nothing("the job has ended"), "only rank 0 does what is done once"
    job.die("a")
    assert job.decide() == Condemn((1,), "worker a is gone")


def test_generation_is_not_over_if_rank_0_leaves_after_the_end_of_the_job(job):
    job.train("a", "b")
    for worker in "ab":
        job.set(worker, phase=Phase.FINISHED)
    job.finished = True
    job.die("a")
    assert job.decide() == Nothing("the job has ended")


def test_a_member_that_has_kept_the_state_is_awaited_while_its_ranks_start_again(job):
    job.train("a", "b")
    job.die("a", "b")
    job.join("b", ready=False, holds=True)
    job.join("n")
    job.run()
    job.pass_time(Timing().holder + Timing().settle)
    job.run()
    assert job.decide().what_for == "the training state, which b kept, to be ready again"
    job.ready("b")
    job.run()
    assert sorted(job.workers()) == ["b", "n"]


def test_the_wait_for_a_kept_state_has_an_end(job):
    job.train("a", "b")
    job.die("a", "b")
    job.join("b", ready=False, holds=True)
    job.join("n")
    job.run()
    job.pass_time(Timing().restart + 1)
    job.run()
    job.run()
    assert job.workers() == ["n"]
