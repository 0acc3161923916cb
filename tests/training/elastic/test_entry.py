"""The entry that all ranks derive from all rows at the start of a generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastrain.api.loops import LoopId
from elastrain.data.share import Share
from elastrain.elastic.encoding.integers import from_integers, to_integers
from elastrain.elastic.group.entry import Entry, EntryRow, Outcome, Script
from elastrain.elastic.reshard.restore import FRESH, Home, ShardRef

HOLDER = EntryRow(
    ShardRef(7, 1, 0),
    size=2,
    reached=7,
    saved_step=5,
    structure=5,
    layout=1,
    overlaps=True,
    in_rounds=True,
    script=Script(computes=True),
)
JOINER = EntryRow(ShardRef(FRESH, 1, 0), size=1, reached=0, told=7, layout=1, overlaps=True, in_rounds=True)


def at(step: int, calls: int = 0) -> EntryRow:
    return replace(HOLDER, live=replace(HOLDER.live, step=step), script=Script(calls=calls))


def test_the_integers_of_a_row_are_the_row():
    row = replace(
        HOLDER,
        script=Script(LoopId(9), 2, between=True),
        snapshots=(ShardRef(4, 3, 2, 1, 0), ShardRef(2, 3, 2)),
        home=Home(5, 6),
    )
    numbers = to_integers(row)
    assert all(type(number) is int for number in numbers)
    assert len(numbers) == len(to_integers(JOINER))
    assert from_integers(EntryRow, numbers) == row


def test_a_checkpoint_is_known_if_one_rank_has_been_told_of_it():
    assert Entry.of([JOINER, replace(JOINER, saved_step=5), JOINER]).saved_step == 5


def test_reports_tell_how_far_training_was_if_no_rank_holds_a_state():
    told = replace(JOINER, told=9)
    assert Entry.of([told, replace(told, told=8)]).reached == 9


def test_a_report_of_steps_before_the_last_return_to_a_snapshot_does_not_count_them_again():
    told = replace(JOINER, told=9)
    assert Entry.of([HOLDER, told]).reached == HOLDER.reached == 7


def test_joiners_are_learners_if_the_holders_of_the_state_can_compute_as_before():
    entry = Entry.of([HOLDER, JOINER, HOLDER, JOINER])
    assert (entry.sources, entry.receivers) == ([0, 2], [1, 3])
    assert entry.shares == {0: Share(0, 2), 2: Share(1, 2), 1: Share(2, 2), 3: Share(2, 2)}


def test_the_furthest_ranks_give_their_state_if_a_loss_left_others_a_step_behind():
    late = at(6)
    entry = Entry.of([late, HOLDER, late, HOLDER])
    assert (entry.sources, entry.receivers) == ([1, 3], [0, 2])


@pytest.mark.parametrize(
    ("table", "receivers"),
    [
        ([HOLDER, HOLDER], []),
        ([replace(HOLDER, size=3), replace(HOLDER, size=3), JOINER], [2]),  # one was lost: their parts would grow
        ([HOLDER, HOLDER, replace(JOINER, overlaps=False)], [2]),
        ([HOLDER, HOLDER, replace(JOINER, layout=2)], [2]),
        ([replace(HOLDER, layout=0), replace(HOLDER, layout=0), replace(JOINER, layout=0)], [2]),
        (
            [replace(HOLDER, script=Script())] * 2 + [replace(JOINER, script=Script(computes=True))],
            [2],
        ),  # a pause is due
        ([replace(JOINER, size=1), JOINER], [1]),  # no rank holds state
    ],
)
def test_every_rank_computes_its_part_of_the_first_step_if_not(table, receivers):
    entry = Entry.of(table)
    assert entry.receivers == receivers
    assert entry.shares == {}


@pytest.mark.parametrize(
    ("table", "in_rounds"),
    [
        ([HOLDER, HOLDER, JOINER], True),
        ([HOLDER, replace(HOLDER, in_rounds=False), JOINER], False),
        ([HOLDER, HOLDER, replace(JOINER, in_rounds=False)], False),
        (
            [HOLDER, HOLDER, replace(JOINER, live=ShardRef(3, 1, 0))],
            False,
        ),  # it keeps its own until it has all of the other
        ([replace(HOLDER, size=3), replace(HOLDER, size=3), JOINER], False),
    ],
)
def test_state_comes_in_several_rounds_if_all_ranks_can_and_no_newer_state_is_lost(table, in_rounds):
    assert Entry.of(table).in_rounds == in_rounds


@pytest.mark.parametrize(
    ("table", "ahead", "behind", "misplaced"),
    [
        ([HOLDER, HOLDER], 0, [], []),
        ([at(7, calls=3), at(7, calls=3)], 0, [], []),
        ([at(7, calls=2), at(7, calls=3), at(7, calls=3)], 1, [0], []),
        ([HOLDER, at(7, calls=1), JOINER], 1, [0], [2]),  # the end of the loop
        ([at(7, calls=1), at(7, calls=3)], 1, [], [0]),  # it was cut off for long
        ([at(7, calls=1), at(6)], 0, [], [1]),
        ([at(6, calls=9), HOLDER, JOINER], 1, [], []),  # calls of an earlier step
    ],
)
def test_a_rank_that_lacks_more_than_one_result_starts_anew(table, ahead, behind, misplaced):
    entry = Entry.of(table)
    assert (entry.ahead, entry.behind, entry.misplaced) == (ahead, behind, misplaced)


IN_LOOP = replace(HOLDER, script=Script(LoopId(9), computes=True))
BETWEEN = replace(HOLDER, script=Script(LoopId(9), calls=1))
"""Its script has passed a call after the loop, where no state is sent."""


@pytest.mark.parametrize(
    ("table", "outcomes"),
    [
        ([IN_LOOP, replace(JOINER, script=Script(LoopId(9)))], [Outcome.ENTER, Outcome.ENTER]),
        ([IN_LOOP, replace(JOINER, script=Script(LoopId(8)))], [Outcome.AWAIT, Outcome.CATCH_UP]),
        ([IN_LOOP, replace(JOINER, script=Script(LoopId(9), between=True))], [Outcome.AWAIT, Outcome.CATCH_UP]),
        ([IN_LOOP, replace(JOINER, script=Script(LoopId(10)))], [Outcome.GIVE_UP, Outcome.START_ANEW]),
        ([BETWEEN, replace(JOINER, script=Script(LoopId(9)))], [Outcome.GIVE_UP, Outcome.WITHDRAW]),
        ([replace(BETWEEN, script=Script(LoopId(9), calls=2)), IN_LOOP], [Outcome.GIVE_UP, Outcome.START_ANEW]),
    ],
)
def test_the_outcome_of_a_meeting_follows_from_where_the_scripts_are(table, outcomes):
    entry = Entry.of(table)
    assert [entry.outcome(rank, row.script.loop) for rank, row in enumerate(table)] == outcomes


@pytest.mark.parametrize("shards", [2, "all"])
def test_a_rank_starts_anew_and_the_others_give_up_if_a_part_of_the_state_is_lost(shards):
    half = replace(HOLDER, live=ShardRef(7, 2, 0))
    table = [half, replace(JOINER, live=ShardRef(FRESH, 2, 1))]
    entry = Entry.of(table, shards)
    if shards == 2:
        assert [entry.outcome(rank, 0) for rank in (0, 1)] == [Outcome.START_ANEW, Outcome.GIVE_UP]
    else:  # a copy that the ranks hold together is lost on all of them
        assert [entry.outcome(rank, 0) for rank in (0, 1)] == [Outcome.START_ANEW, Outcome.START_ANEW]
    assert "no rank holds the other parts of the state of ranks 0" in entry.why_not


@pytest.mark.parametrize(
    ("loop", "late", "misplaced"),
    [
        (LoopId(8), [2], []),
        (LoopId(9), [2], []),
        (LoopId(9, 1), [], []),
        (LoopId(10), [], [2]),
        (LoopId(9, 2), [], [2]),
    ],
)
def test_a_joiner_in_an_earlier_loop_is_late_and_one_in_a_later_loop_is_misplaced(loop, late, misplaced):
    holder = replace(HOLDER, script=Script(LoopId(9, 1)))
    entry = Entry.of([holder, holder, replace(JOINER, script=Script(loop))])
    assert (entry.loop, entry.late, entry.misplaced) == (LoopId(9, 1), late, misplaced)


def test_no_rank_is_late_if_all_hold_state():
    entry = Entry.of([replace(HOLDER, script=Script(LoopId(9), calls=1)), replace(HOLDER, script=Script(LoopId(8)))])
    assert (entry.late, entry.misplaced) == ([], [])
