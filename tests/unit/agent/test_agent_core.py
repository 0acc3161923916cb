"""The agent's decisions while its ranks start, train and die: scenarios of worker ``a``."""

from __future__ import annotations

import signal

import builders
from effects import none, only
from elastrain.agent.core.events import (
    End,
    Fenced,
    JobSnapshot,
    KillRanks,
    Leave,
    Publish,
    RankExited,
    RankHungUp,
    RankSaid,
    Reincarnate,
    Signalled,
    StartRanks,
)
from elastrain.agent.core.machine import Core
from elastrain.agent.core.published import REPORT_LATER_SECONDS
from elastrain.agent.core.restart import MAX_RESTARTS, WINDOW
from elastrain.api.messages import AGENT_MESSAGE, Abort, Adopted, Hello, Proposed, Ready, Welcome
from elastrain.api.records import Outcome, Phase, Target
from elastrain.api.settings import CheckpointSpec, RankSettings


# ---- start ---------------------------------------------------------------------------------------------------------
def test_ranks_start_if_registered_and_etcd_was_read(story):
    none(story.registered(), StartRanks)
    assert story.seen() == [StartRanks(1)]


def test_outcome_is_finished_if_the_job_had_finished_before_the_start(story):
    story.registered()
    ending = only(story.sees(finished=True), End).termination
    assert (ending.outcome, ending.exit_code) == (Outcome.FINISHED, 0)
    none(story.log, StartRanks)


def test_outcome_is_drained_without_starting_if_the_target_is_zero(story):
    story.registered()
    ending = only(story.sees(target=Target(min=1, max=4, desired=0)), End).termination
    assert ending.outcome is Outcome.DRAINED
    none(story.log, StartRanks)


def test_outcome_is_drained_at_once_if_a_signal_comes_before_registration(story):
    assert only(story.event(Signalled(signal.SIGTERM)), End).termination.outcome is Outcome.DRAINED


# ---- ready ---------------------------------------------------------------------------------------------------------
def test_a_rank_is_welcomed_only_if_the_member_has_its_id(story, sent):
    story.started()
    (welcome,) = sent(story.says(Hello(local_rank=0, pid=7)), Welcome)
    assert welcome == Welcome(member="a.x", address="10.0.0.1", lease_ttl=5.0, settings=RankSettings())


def test_a_rank_receives_the_settings_that_its_agent_has(story, sent):
    settings = RankSettings(checkpoint=CheckpointSpec(path="/ckpt", every_steps=10), backend="tcp")
    story.core = Core(builders.settings(written=settings.model_dump_json()))
    story.started()
    (welcome,) = sent(story.says(Hello(local_rank=0, pid=7)), Welcome)
    assert AGENT_MESSAGE.validate_json(welcome.encode()).settings == settings


def test_a_rank_is_told_how_far_the_job_has_come_and_been_saved(story, sent):
    story.started()
    story.event(JobSnapshot(story.target, step=120, saved_step=100))
    (welcome,) = sent(story.says(Hello(local_rank=0, pid=7)), Welcome)
    assert (welcome.step, welcome.saved_step) == (120, 100)


def test_phase_is_ready_only_if_all_ranks_are(new_story):
    story = new_story(nproc=2).started()
    for rank in (0, 1):
        story.says(Hello(local_rank=rank, pid=rank + 1), rank)
    none(story.says(Ready(), 1), Publish)
    published = only(story.says(Ready(store_port=4000), 0), Publish)
    assert (published.phase, published.store_port) == (Phase.READY, 4000)


def test_a_late_rank_receives_the_generation_in_force(story, sent, make_generation):
    story.started()
    story.sees(generation=make_generation(4, "b"))
    effects = story.says(Hello(local_rank=0, pid=7))
    assert [m.type for m in sent(effects, Welcome | Proposed)] == ["welcome", "proposed"]


def test_a_generation_is_sent_once(story, sent, make_generation):
    story.ready()
    assert sent(story.sees(generation=make_generation(1, "a")), Proposed)
    assert not sent(story.seen(), Proposed)


def test_generation_is_published_only_if_all_ranks_adopted_it(new_story, make_generation):
    story = new_story(nproc=2).ready()
    story.sees(generation=make_generation(1, "a", slots=2))
    none(story.adopts(1, rank=0), Publish)
    assert only(story.adopts(1, step=3, rank=1), Publish).generation == 1


# ---- loss ----------------------------------------------------------------------------------------------------------
def test_broken_is_published_if_a_rank_reports_it(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    published = only(story.breaks(2), Publish)
    assert (published.broken, published.phase) == (2, Phase.READY)


def test_broken_is_published_if_one_of_several_ranks_reports_it(new_story, make_generation):
    story = new_story(nproc=2).training_in(make_generation(2, "a", "b", slots=2))
    assert only(story.breaks(2, rank=1), Publish).broken == 2


def test_broken_stays_published_if_the_rank_reports_an_older_generation_afterwards(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(generation=make_generation(3, "a", "b", "c"))
    assert only(story.breaks(3), Publish).broken == 3, "it could not connect to the proposal"
    story.breaks(2)
    assert only(story.event(Signalled(signal.SIGTERM)), Publish).broken == 3


def test_broken_is_not_published_if_the_leader_has_ended_the_generation(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.hears_the_end_of(2)
    none(story.breaks(2), Publish)
    none(story.later(10.0), Publish)


def test_broken_is_left_to_the_first_few_for_a_while_if_the_generation_is_large(story, make_generation):
    story.training_in(make_generation(2, *"bcdefghijka"))
    none(story.breaks(2), Publish)
    assert story.core.deadline() == story.now + REPORT_LATER_SECONDS
    assert only(story.later(REPORT_LATER_SECONDS), Publish).broken == 2
    assert story.core.deadline() is None


def test_broken_is_never_published_if_a_next_generation_replaces_the_large_one_in_time(story, make_generation):
    story.training_in(make_generation(2, *"bcdefghijka"))
    story.breaks(2)
    story.hears_the_end_of(2)
    story.sees(generation=make_generation(3, *"bcdefghija"))
    assert only(story.adopts(3) + story.later(10.0), Publish).later


def test_adoption_is_written_only_by_the_member_of_rank_0(story, make_generation):
    story.ready()
    story.sees(generation=make_generation(1, "b", "a"))
    kept = only(story.adopts(1, step=3), Publish)
    assert (kept.generation, kept.step, kept.later) == (1, 3, True), "for a record that etcd loses"
    story.sees(generation=make_generation(2, "a", "b"))
    written = only(story.adopts(2), Publish)
    assert (written.generation, written.later) == (2, False)


def test_what_is_kept_for_a_lost_record_does_not_count_as_a_report_of_a_break(story, make_generation):
    story.ready()
    story.sees(generation=make_generation(1, "b", "a"))
    assert only(story.adopts(1), Publish).later
    broken = only(story.breaks(1), Publish)
    assert (broken.broken, broken.later) == (1, False)


def test_adoption_of_the_empty_generation_is_published(story, make_generation):
    story.training_in(make_generation(1, "b", "a"))
    story.sees(generation=make_generation(2, "b"))
    assert only(story.adopts(2), Publish).generation == 2


def test_abort_is_sent_once_if_the_leader_ends_the_generation(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    (abort,) = sent(story.hears_the_end_of(2), Abort)
    assert abort == Abort(generation=2, reason="worker b is gone")
    assert not sent(story.seen(), Abort)


def test_no_abort_if_the_rank_reported_the_failure_itself(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.breaks(2)
    assert not sent(story.hears_the_end_of(2), Abort)


def test_a_connecting_rank_aborts_only_the_proposal_if_only_that_has_ended(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(generation=make_generation(3, "a", "b", "c"))
    assert [m.generation for m in sent(story.hears_the_end_of(3), Abort)] == [3]


def test_both_generations_are_aborted_if_both_have_ended(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(generation=make_generation(3, "a", "b", "c"))
    assert [m.generation for m in sent(story.hears_the_end_of(2, 3), Abort)] == [2, 3]


def test_no_abort_if_the_rank_is_not_in_the_generation_that_ended(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(generation=make_generation(3, "b", "c"))
    assert not sent(story.hears_the_end_of(3), Abort)


def test_a_rank_that_disconnects_breaks_its_generation(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    published = only(story.event(RankHungUp(1, 0)), Publish)
    assert (published.broken, published.phase) == (2, Phase.WARMING)


# ---- a lease that is not confirmed ---------------------------------------------------------------------------------
def test_a_member_that_is_alone_stops_if_it_is_fenced(story, sent, make_generation):
    story.training_in(make_generation(1, "a"))
    (abort,) = sent(story.event(Fenced(5.1)), Abort)
    assert abort == Abort(generation=1, reason="etcd has not confirmed the lease for 5.1 s")


def test_a_fenced_member_continues_in_the_next_generation(story, sent, make_generation):
    story.training_in(make_generation(1, "a"))
    story.event(Fenced(5.1))
    assert only(story.breaks(1), Publish).broken == 1
    assert not sent(story.sees(generation=make_generation(2, "a")), Abort)
    assert only(story.adopts(2), Publish).generation == 2


def test_members_of_a_larger_generation_continue_if_etcd_is_away(story, sent, make_generation):
    story.training_in(make_generation(1, "a", "b"))
    assert not sent(story.event(Fenced(60.0)), Abort)


# ---- a rank dies ---------------------------------------------------------------------------------------------------
def test_the_key_is_deleted_at_once_and_siblings_are_killed_if_a_signal_kills_a_rank(new_story, make_generation):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    effects = story.exits(signal=9, rank=1)
    assert effects == [Reincarnate(), KillRanks(9, "rank 1 was killed by signal 9")]


def test_ranks_restart_under_a_new_id_if_all_are_reaped(new_story, make_generation, sent):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    story.exits(signal=9, rank=1)
    assert story.exits(signal=9, rank=0) == [StartRanks(2)]
    assert not sent(story.says(Hello(local_rank=0, pid=9)), Welcome), "welcomed under the dead member's id"
    (welcome,) = sent(story.registered(), Welcome)
    assert welcome.member == "a.x2"


def test_messages_of_the_dead_incarnation_are_ignored(story, make_generation):
    story.training_in(make_generation(1, "a"))
    story.exits(signal=9)
    assert story.event(RankSaid(1, 0, Ready())) == []
    assert story.event(RankExited(1, 0, code=1)) == []


def test_the_worker_fails_if_ranks_are_killed_repeatedly(story):
    story.ready()
    for _ in range(MAX_RESTARTS):
        story.exits(signal=9)
        story.registered()
    ending = only(story.exits(signal=9), End).termination
    assert (ending.outcome, ending.reason, ending.exit_code, ending.signal) == (Outcome.FAILED, "RankKilled", 137, 9)
    assert "SIGKILL" in ending.message


def test_old_restarts_do_not_count(story):
    story.ready()
    for _ in range(3 * MAX_RESTARTS):
        story.exits(signal=11)
        story.registered()
        story.later(WINDOW / MAX_RESTARTS)
    none(story.log, End)


def test_the_worker_fails_with_the_scripts_code_and_message_if_a_rank_raises(new_story, make_generation):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    log = 'Traceback (most recent call last):\n  File "t.py", line 3, in step\n    x\nValueError: bad batch'
    assert story.exits(code=3, rank=1, log=log)[:2] == [
        KillRanks(9, "ValueError: bad batch (t.py:3 in step)"),
        Leave(),
    ]
    ending = only(story.exits(signal=9, rank=0), End).termination
    assert (ending.outcome, ending.exit_code, ending.rank, ending.reason) == (Outcome.FAILED, 3, 1, "ScriptFailed")
    assert ending.message == "ValueError: bad batch (t.py:3 in step)"
    assert ending.log_tail == log


def test_a_member_learns_until_all_its_ranks_have_their_state(new_story, make_generation):
    story = new_story(nproc=2).ready()
    story.sees(make_generation(1, "a", "b", slots=2))
    story.says(Adopted(generation=1, step=5, complete=False), rank=0)
    assert only(story.says(Adopted(generation=1, step=5, complete=False), rank=1), Publish).learning
    none(story.says(Adopted(generation=1, step=7), rank=0), Publish)
    assert not only(story.says(Adopted(generation=1, step=7), rank=1), Publish).learning


def test_ranks_are_killed_within_the_grace_period_that_a_policy_has_left(new_story):
    story = new_story().started()
    story.sees(target=story.target.model_copy(update={"drain": 10.0}))
    story.event(Signalled(signal.SIGTERM))
    assert story.core.bounds.drain == story.now + 10.0
