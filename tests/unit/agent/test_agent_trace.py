"""An agent's spans of a change of generation."""

from __future__ import annotations

import builders
from elastrain.agent.core.events import JobSnapshot, RankExited, RankSaid, Registered, StartRanks, Tick
from elastrain.agent.tracing import Notes
from elastrain.api.messages import Adopted, Broken, Ready
from elastrain.api.records import Generation, Target


def generation(number: int, leader: str = "w-0.a", members: str = "w-0.a w-1.b") -> Generation:
    return builders.generation(number, *members.split(), leader=leader)


def target(desired: int) -> Target:
    return Target(min=1, max=4, desired=desired)


def test_a_joiner_traces_its_start_and_its_switch() -> None:
    notes = Notes()
    assert notes.note(Registered("w-0.a"), [], 1.0) is None
    assert notes.note(JobSnapshot(target=target(1)), [StartRanks(1)], 1.5) is None
    assert notes.note(RankSaid(1, 0, Ready(store_port=1)), [], 4.0) is None
    number, spans = notes.note(JobSnapshot(target=target(1), generation=generation(3)), [], 4.2) or (0, [])
    assert number == 3
    assert [(s.name, s.start, s.end) for s in spans] == [("agent.decide", 1.0, 4.2), ("agent.start", 1.5, 4.0)]
    assert spans[0].attributes["elastrain.sign"] == "joined"
    assert spans[0].attributes["elastrain.leader"] is True
    number, (switch,) = notes.note(RankSaid(1, 0, Adopted(generation=3, step=5)), [], 4.5) or (0, [])
    assert (number, switch.name, switch.start, switch.end) == (3, "agent.switch", 4.2, 4.5)


def settled(now: float = 0.0) -> Notes:
    notes = Notes(member="w-1.b")
    notes.note(JobSnapshot(target=target(2), generation=generation(3)), [], now)
    notes.note(RankSaid(1, 0, Adopted(generation=3, step=5)), [], now)
    return notes


def test_a_survivor_traces_the_decision_from_the_first_sign() -> None:
    notes = settled()
    notes.note(RankSaid(1, 0, Broken(generation=3, step=9, error="reset")), [], 10.0)
    notes.note(JobSnapshot(target=target(2), generation=generation(3), ended={3: "lost"}), [], 10.1)
    number, (decide,) = notes.note(JobSnapshot(target=target(2), generation=generation(4)), [], 10.3) or (0, [])
    assert (number, decide.start, decide.end) == (4, 10.0, 10.3)
    assert decide.attributes["elastrain.sign"] == "broken"
    assert decide.attributes["elastrain.leader"] is False


def test_a_new_target_is_a_sign() -> None:
    notes = settled()
    notes.note(JobSnapshot(target=target(4), generation=generation(3)), [], 10.0)
    _, (decide,) = notes.note(JobSnapshot(target=target(4), generation=generation(4)), [], 13.0) or (0, [])
    assert (decide.start, decide.attributes["elastrain.sign"]) == (10.0, "target")


def test_a_generation_that_ended_long_ago_is_no_sign_of_the_next_change() -> None:
    notes = settled()
    notes.note(JobSnapshot(target=target(2), generation=generation(4), ended={3: "lost"}), [], 10.0)
    notes.note(RankSaid(1, 0, Broken(generation=3, step=9, error="late")), [], 10.1)
    notes.note(JobSnapshot(target=target(2), generation=generation(4), ended={3: "lost"}), [], 11.0)
    notes.note(JobSnapshot(target=target(4), generation=generation(4), ended={3: "lost"}), [], 100.0)
    _, (decide,) = notes.note(
        JobSnapshot(target=target(4), generation=generation(5), ended={3: "lost"}), [], 103.0
    ) or (0, [])
    assert (decide.start, decide.attributes["elastrain.sign"]) == (100.0, "target")


def test_a_target_that_matches_the_generation_in_force_is_no_sign() -> None:
    """The operator removes the names of leavers from the target when their pods are gone."""
    notes = settled()
    notes.note(
        JobSnapshot(target=Target(min=1, max=4, desired=2, leaving=("w-2",)), generation=generation(3)), [], 10.0
    )
    notes.note(JobSnapshot(target=target(2), generation=generation(3)), [], 12.0)
    notes.note(RankExited(1, 0, signal=9), [], 500.0)
    _, (decide,) = notes.note(JobSnapshot(target=target(2), generation=generation(4)), [], 501.0) or (0, [])
    assert (decide.start, decide.attributes["elastrain.sign"]) == (500.0, "rank ended")


def test_a_withdrawn_target_is_no_sign() -> None:
    notes = settled()
    notes.note(JobSnapshot(target=target(4), generation=generation(3)), [], 10.0)
    notes.note(JobSnapshot(target=target(2), generation=generation(3)), [], 12.0)
    notes.note(
        JobSnapshot(target=Target(min=1, max=4, desired=2, leaving=("w-0",)), generation=generation(3)), [], 500.0
    )
    _, (decide,) = notes.note(JobSnapshot(generation=generation(4, members="w-1.b")), [], 501.0) or (0, [])
    assert (decide.start, decide.attributes["elastrain.sign"]) == (500.0, "target")


def test_there_are_no_spans_without_a_change() -> None:
    notes = settled()
    for event in (
        Tick(),
        JobSnapshot(target=target(2), generation=generation(3)),
        RankSaid(1, 0, Adopted(generation=3, step=6)),
    ):
        assert notes.note(event, [], 20.0) is None


def test_the_end_of_a_rank_is_a_sign() -> None:
    notes = settled()
    notes.note(RankExited(1, 0, signal=9), [], 5.0)
    _, (decide,) = notes.note(JobSnapshot(generation=generation(4)), [], 6.0) or (0, [])
    assert decide.attributes["elastrain.sign"] == "rank ended"


def test_a_joiner_traces_nothing_of_the_generation_that_trains_without_it() -> None:
    notes = Notes()
    notes.note(Registered("w-0.a"), [], 1.0)
    assert notes.note(JobSnapshot(target=target(2), generation=generation(1, members="w-1.b")), [], 1.5) is None
    assert notes.note(RankSaid(1, 0, Adopted(generation=1, step=0)), [], 4.0) is None
    number, (decide,) = notes.note(JobSnapshot(target=target(2), generation=generation(2)), [], 5.0) or (0, [])
    assert (number, decide.start) == (2, 1.0)
