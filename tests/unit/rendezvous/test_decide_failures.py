"""``decide`` where a member fails by itself: it is left out, and the others do not wait for it."""

from __future__ import annotations

import pytest

from elastrain.api.records import Phase, Target
from elastrain.rendezvous.decide import Nothing, Propose, Wait
from elastrain.rendezvous.view import MAX_FAULTS


def until_proposed(job, most: float) -> list[str]:
    """The workers of the next generation, which follows within ``most`` seconds."""
    began = job.now
    while not isinstance(job.run(), Propose):
        job.pass_time(0.05)
        assert job.now - began <= most, job.decide()
    return job.workers()


def test_a_member_whose_process_ends_by_its_own_failure_is_not_awaited(job):
    """It is alive and in the newest generation, and its process may take long to end."""
    job.train("a", "b")
    job.join("j")
    job.run()
    job.set("j", phase=Phase.LEAVING, broken=2)
    job.fail("a", "b")
    assert until_proposed(job, 0.2) == ["a", "b"]


def test_a_member_that_broke_two_entries_by_itself_is_left_out_and_the_others_do_not_pause(job):
    job.target = Target(min=1, max=3, desired=3)
    job.train("a", "b")
    job.join("j")
    job.run()
    for faults in range(1, MAX_FAULTS + 1):
        assert job.workers() == ["a", "b", "j"]
        number = job.base.number
        job.set("j", broken=number, faults=faults)
        for worker in "ab":
            job.set(worker, broken=number)
        assert until_proposed(job, 0.2) == (["a", "b", "j"] if faults < MAX_FAULTS else ["a", "b"])
    job.adopt()
    for _ in range(10):
        job.pass_time(60.0)
        job.run()
        assert job.workers() == ["a", "b"]


def test_a_holder_that_cannot_connect_is_left_out_if_others_hold_the_state(job):
    """Its peers see nothing of it: it trains on in the old generation."""
    job.target = Target(min=1, max=3, desired=3)
    job.train("a", "b")
    job.join("j")
    job.run()
    for faults in range(1, MAX_FAULTS + 1):
        job.set("b", fault=job.base.number, faults=faults)
        until_proposed(job, 0.2)
    assert job.workers() == ["a", "j"]


def test_no_member_without_the_state_is_admitted_if_its_only_holder_fails_at_that(job):
    job.target = Target(min=1, max=2, desired=2)
    job.train("a")
    job.join("j")
    job.run()
    for faults in range(1, MAX_FAULTS + 1):
        job.set("a", fault=job.base.number, faults=faults)
        until_proposed(job, 0.2)
    assert job.workers() == ["a"], "it is not passed over"
    job.adopt()
    job.pass_time(100.0)
    assert job.run() == Nothing("a cannot give the training state to new members")


@pytest.mark.parametrize("holders", ["a", "ab"])
def test_members_that_cannot_send_their_state_train_on_without_joiners(job, holders):
    job.target = Target(min=1, max=4, desired=4)
    job.train(*holders)
    job.join("j")
    job.run()
    for unsent in range(1, MAX_FAULTS + 1):
        number = job.base.number
        for worker in holders:
            job.set(worker, broken=number)
        job.set("a", unsent=unsent)
        job.set("j", broken=number)
        until_proposed(job, 0.2)
    assert job.workers() == list(holders)
    job.adopt()
    job.pass_time(100.0)
    assert "cannot give the training state" in str(job.run())
    assert job.workers() == list(holders)


def test_holders_do_not_pause_for_joiners_that_break_each_entry_whatever_the_cause(job):
    """A joiner behind a bad network, say: neither side can tell whose failure it is."""
    job.target = Target(min=1, max=3, desired=3)
    job.train("a", "b")
    job.join("j")
    job.run()
    alone = []
    for _ in range(6):
        assert until_proposed(job, 100.0) == ["a", "b", "j"] if job.workers() != ["a", "b", "j"] else True
        number = job.base.number
        for worker in "abj":
            job.set(worker, broken=number)
        workers = until_proposed(job, 0.2)
        if workers == ["a", "b"]:
            job.adopt()
            job.step += 5
            waits = job.run()
            assert isinstance(waits, Wait), "the next attempt comes later"
            alone.append(waits.until - job.now)
    assert len(alone) >= 4, "the holders went on alone"
    assert alone == sorted(alone) and alone[-1] > 4 * alone[0], "the attempts become rare"


def test_members_without_any_state_still_pause_if_they_break_each_start(job):
    job.target = Target(min=2, max=2, desired=2)
    job.join("a", "b")
    job.run()
    pauses = []
    for _ in range(4):
        for worker in "ab":
            job.set(worker, broken=job.base.number)
        began = job.now
        until_proposed(job, 100.0)
        pauses.append(job.now - began)
    assert pauses == sorted(pauses) and pauses[-1] > 3.0
