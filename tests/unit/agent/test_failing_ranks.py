"""Ranks that fail by themselves: what their agent says of them, and how the worker ends."""

from __future__ import annotations

from effects import only
from elastrain.agent.core.bounds import FAILING_SECONDS
from elastrain.agent.core.events import End, KillRank, Publish
from elastrain.api.messages import Broken, Exit
from elastrain.api.names import EXIT_INFRASTRUCTURE
from elastrain.api.records import Health, Outcome, Phase


def own(number: int, error: str = "KeyError: 'x'", **fields: bool) -> Broken:
    return Broken(generation=number, step=10, error=error, mine=True, **fields)


def test_the_member_leaves_at_once_if_a_rank_ends_by_its_own_failure(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    said = only(story.says(own(2, leaves=True)), Publish)
    assert (said.phase, said.broken) == (Phase.LEAVING, 2), "no leader waits for the end of its process"
    end = only(
        story.exits(code=1, log="Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'"), End
    )
    assert (end.termination.reason, end.exit_code) == ("ScriptFailed", 1)
    assert end.termination.message.startswith("KeyError: 'x'")


def test_a_process_that_does_not_end_after_its_failure_is_killed_and_the_failure_is_the_scripts(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.says(own(2, "OutOfMemoryError: full", leaves=True))
    assert not [e for e in story.later(FAILING_SECONDS - 0.1) if isinstance(e, KillRank)]
    assert only(story.later(0.2), KillRank).local_rank == 0
    end = only(story.exits(signal=9), End)
    assert (end.termination.reason, end.termination.signal, end.exit_code) == ("ScriptFailed", 0, 1)
    assert end.termination.message == "OutOfMemoryError: full"


def test_a_member_trains_on_if_it_cannot_connect_to_a_proposal_by_itself(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(make_generation(3, "a", "b", "c"))
    said = only(story.says(own(3)), Publish)
    assert (said.phase, said.broken, said.fault, said.faults) == (Phase.READY, 0, 3, 1)
    story.sees(make_generation(4, "a", "b", "c"))
    said = only(story.says(own(4)), Publish)
    assert (said.broken, said.faults, said.health) == (0, 2, Health.UNFIT)
    assert said.health_message == "local rank 0 cannot connect to its peers: KeyError: 'x'"


def test_the_worker_ends_as_unfit_if_a_generation_is_formed_without_it(story, make_generation, sent):
    story.training_in(make_generation(2, "a", "b"))
    for number in (3, 4):
        story.sees(make_generation(number, "a", "b", "c"))
        story.says(own(number))
    story.sees(make_generation(5, "b", "c"))
    assert sent(story.adopts(5), Exit)
    end = only(story.leaves(), End)
    assert (end.termination.outcome, end.exit_code) == (Outcome.FAILED, EXIT_INFRASTRUCTURE)
    assert (end.termination.reason, "cannot connect" in end.termination.message) == ("CannotConnect", True)


def test_failures_to_connect_are_forgotten_if_the_rank_enters_a_generation(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(make_generation(3, "a", "b", "c"))
    story.says(own(3))
    story.sees(make_generation(4, "a", "b", "c"))
    story.adopts(4)
    story.sees(make_generation(5, "a", "b", "c", "d"))
    assert only(story.says(own(5)), Publish).faults == 1


def test_a_rank_that_cannot_send_its_state_stays_and_says_so(story, make_generation):
    story.training_in(make_generation(2, "a"))
    for number in (3, 4):
        story.sees(make_generation(number, "a", "c"))
        said = only(story.says(own(number, "TypeError: cannot pickle a lock", unsent=True)), Publish)
        story.adopts(number - 1)
    assert (said.phase, said.broken, said.unsent, said.faults) == (Phase.READY, 4, 2, 0)
    assert said.health_message == "local rank 0 cannot send its state: TypeError: cannot pickle a lock"
