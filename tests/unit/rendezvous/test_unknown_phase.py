"""Members whose phase this version does not know: they are neither lost nor counted on."""

from __future__ import annotations

import pytest

from elastrain.api.records import UNREADABLE, Target
from elastrain.rendezvous.decide import Nothing, Propose, Wait

PHASES = ["hibernating", UNREADABLE]


@pytest.mark.parametrize("phase", PHASES)
def test_a_generation_trains_on_with_such_a_member(job, phase):
    job.train("a", "b", "c")
    job.set("b", phase=phase)
    for _ in range(5):
        job.pass_time(100.0)
        assert isinstance(job.run(), Nothing | Wait)
    assert job.workers() == ["a", "b", "c"]
    assert job.view().intact


@pytest.mark.parametrize("phase", PHASES)
def test_such_a_member_joins_no_generation(job, phase):
    job.train("a", "b")
    job.join("c", ready=False)
    job.set("c", phase=phase, store_port=1)
    job.pass_time(100.0)
    assert isinstance(job.run(), Nothing | Wait)


@pytest.mark.parametrize("phase", PHASES)
def test_after_a_loss_the_others_continue_and_it_joins_again_once_it_is_ready(job, phase):
    job.train("a", "b", "c")
    job.set("b", phase=phase)
    job.die("c")
    while not isinstance(job.run(), Propose):
        job.pass_time(1.0)
    assert job.workers() == ["a"]
    job.adopt()
    job.ready("b")
    while not isinstance(job.run(), Propose):
        job.pass_time(1.0)
    assert job.workers() == ["a", "b"]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_others_do_not_begin_without_the_state_if_only_such_a_member_may_hold_it(job, phase, stops):
    job.target = Target(min=1, max=2, desired=2)
    job.train("a")
    if stops:  # the operator asks it to leave: it saves what it has, and stays until it is told to end
        job.target = Target(min=1, max=2, desired=2, leaving=("a",))
        job.run()
        job.adopt()
        job.target = Target(min=1, max=2, desired=2)
    else:
        job.fail("a")
    job.set("a", phase=phase)
    job.join("b")
    for _ in range(5):
        job.pass_time(100.0)
        job.run()
    assert job.workers() != ["b"]
    assert "a may hold the training state" in job.decide().reason
    job.ready("a")
    job.run()
    assert job.workers() == ["a", "b"]


def test_others_begin_if_such_a_member_is_known_to_hold_no_state(job):
    job.train("a")
    job.join("b", "c")
    job.set("b", phase="hibernating")
    job.die("a")
    while not isinstance(job.run(), Propose):
        job.pass_time(1.0)
    assert job.workers() == ["c"]
