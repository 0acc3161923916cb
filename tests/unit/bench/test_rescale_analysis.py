"""How the benchmark's figures follow from step logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_rescale import analysis, history, report
from bench_rescale.analysis import Fired, Recording
from bench_rescale.results import EventResult, Footprint, Phases, RunResult, Samples, Undisturbed
from bench_rescale.steplog import Line

COUNT = 4
"""Samples of a rank in a step."""


def commit(at: float, step: int, *, node: int = 0, pid: int = 0, world: int = 2, rank: int = 0, first: int = 0) -> Line:
    return Line("commit", at, node, pid or 100 + node, step, world, rank, first, COUNT)


def begin(at: float, step: int, *, node: int = 0, pid: int = 0) -> Line:
    return Line("begin", at, node, pid or 100 + node, step)


def fired(at: float = 10.0, until: float = 20.0, **facts: object) -> Fired:
    """An event at which node 2 joins nodes 0 and 1, unless ``facts`` differ."""
    return Fired(
        **{"label": "x", "survivors": (0, 1), "members": (0, 1, 2), "from_size": 2, **facts}, at=at, until=until
    )


def result(event: Fired, *lines: Line) -> EventResult:
    return analysis.event_result(event, analysis.lines_by_node(lines))


# ---- stall ---------------------------------------------------------------------------------------------------------
def test_stall_is_the_longest_time_between_two_steps_of_the_worst_survivor() -> None:
    lines = [commit(t, i) for i, t in enumerate([9.0, 9.9, 10.2, 11.0])]
    lines += [commit(t, i, node=1) for i, t in enumerate([9.0, 9.9, 10.1, 11.0])]
    assert result(fired(), *lines).stall == pytest.approx(0.9)


def test_stall_begins_at_the_last_step_before_the_event() -> None:
    assert result(fired(), commit(7, 1), commit(9.5, 2), commit(12, 3)).stall == 2.5


def test_stall_ignores_what_came_before_and_after_the_event() -> None:
    assert result(fired(), commit(1, 1), commit(9, 2), commit(10.5, 3), commit(50, 4)).stall == 1.5


def test_stall_lasts_to_the_end_if_the_job_did_not_recover() -> None:
    assert result(fired(recovered=False), commit(9, 1)).stall == 11


# ---- time to size ----------------------------------------------------------------------------------------------------
def test_time_to_size_ends_when_the_last_member_has_trained_at_the_new_size() -> None:
    lines = [
        commit(10.5, 1),
        commit(13, 2, world=3),
        commit(13.1, 2, node=1, world=3),
        commit(13.2, 2, node=2, world=3),
    ]
    assert result(fired(), *lines).time_to_size == pytest.approx(3.2)


def test_time_to_size_is_unknown_if_a_member_never_trained_at_the_new_size() -> None:
    assert result(fired(), commit(13, 2, world=3), commit(13, 2, node=1, world=3)).time_to_size is None


def test_a_last_step_of_the_old_world_does_not_end_the_time_to_size_if_a_killed_rank_comes_back() -> None:
    event = fired(members=(0, 1), survivors=(0,), restarted=1)
    old_world = [commit(10.1, 5)]
    new_world = [
        Line("start", 12, 1, 999),
        commit(14, 6),
        commit(14.1, 6, node=1, pid=999),
    ]
    assert result(event, *old_world, *new_world).time_to_size == pytest.approx(4.1)


def test_there_is_no_time_to_size_if_nothing_should_have_changed() -> None:
    event = fired(survivors=(0, 1), members=(0, 1))
    assert result(event, commit(9, 1), commit(11, 2), commit(11, 2, node=1)).time_to_size is None


# ---- the system's own records ----------------------------------------------------------------------------------------
def test_rescale_records_belong_to_the_event_during_which_they_switched() -> None:
    def own(step: int, from_size: int = 3) -> dict[str, object]:
        phases = {"connect": 0.01, "first_step": 0.2}
        return {
            "step": step, "reason": "Lost", "from_size": from_size, "to_size": 2, "pause_seconds": 0.3, "phases": phases
        }  # fmt: skip

    lines = analysis.lines_by_node([commit(9, 5), commit(11, 6), commit(12, 7), commit(30, 8)])
    records = [own(4), own(5), own(6), own(7), own(6, from_size=0)]
    found = analysis.event_result(fired(), lines, records).rescales
    assert [(r.name, r.pause, r.seconds["connect"]) for r in found] == [("Lost 3→2", 0.3, 0.01)] * 2


# ---- redone and discarded --------------------------------------------------------------------------------------------
def test_redone_counts_the_steps_that_the_job_was_rolled_back_by() -> None:
    lines = [commit(8, 6), commit(9, 7), commit(12, 5), commit(12.1, 5, node=1), commit(13, 6)]
    assert result(fired(), *lines).redone == 3


def test_steps_are_redone_also_if_only_a_newcomer_does_them_and_survivors_join_it_later() -> None:
    lines = [commit(9, 80), commit(9.1, 80, node=1), commit(12, 61, node=2), commit(13, 62, node=2), commit(14, 63)]
    assert result(fired(), *lines).redone == 20


def test_a_single_step_is_redone_if_a_node_commits_it_twice() -> None:
    assert result(fired(), commit(9, 7), commit(9.1, 7, node=1), commit(12, 7), commit(13, 8)).redone == 1


def test_a_step_is_late_and_not_redone_if_a_process_was_stopped_before_it_could_commit_it() -> None:
    before = [commit(9, 50, pid=1), commit(9, 50, node=1, pid=2), commit(9.5, 51, pid=1)]
    alone = [commit(11, 52, pid=1, world=1), commit(12, 53, pid=1, world=1)]
    late = commit(13, 51, node=1, pid=2)
    after = [commit(14, 54, pid=1), commit(14, 54, node=1, pid=2)]
    assert result(fired(), *before, *alone, late, *after).redone == 0
    again = commit(13, 51, node=1, pid=3)  # another process without own state: it was rolled back
    assert result(fired(), *before, *alone, again, *after).redone == 3


def test_nothing_is_redone_if_steps_continue() -> None:
    lines = [commit(9 + i + node / 10, 7 + i, node=node) for i in range(3) for node in range(2)]
    assert result(fired(), *lines).redone == 0


def test_a_step_that_is_begun_twice_was_discarded_once() -> None:
    lines = [commit(9, 7), begin(9.5, 7), begin(11, 7), commit(11.2, 8)]
    assert result(fired(), *lines).discarded == 1


def test_a_step_that_a_peer_had_committed_was_not_discarded() -> None:
    lines = [commit(9, 7), begin(9.5, 7), begin(11, 8), commit(11.2, 9)]
    assert result(fired(), *lines).discarded == 0


def test_a_step_that_ended_with_its_process_was_discarded() -> None:
    lines = [begin(9.5, 7, pid=1), Line("start", 12, 0, 2), begin(13, 5, pid=2), commit(13.5, 6, pid=2)]
    assert result(fired(), *lines).discarded == 1


# ---- processes -----------------------------------------------------------------------------------------------------
def test_pids_changed_if_another_process_trains_on_a_survivor() -> None:
    assert result(fired(), commit(9, 7, pid=1), commit(12, 5, pid=2)).pids_changed


def test_pids_are_unchanged_if_only_the_restarted_node_has_a_new_one() -> None:
    event = fired(survivors=(0,), members=(0, 1), restarted=1)
    lines = [commit(9, 7), commit(12, 8), commit(9, 7, node=1, pid=1), commit(12, 8, node=1, pid=2)]
    assert not result(event, *lines).pids_changed


# ---- samples -------------------------------------------------------------------------------------------------------
def stream(worlds: list[tuple[int, int]], saved_every: int = 3) -> list[Line]:
    """Lines of a checkpointing trainer: (ranks, steps) one after the other, a roll-back to the checkpoint between."""
    lines: list[Line] = []
    saved, now = (0, 0), 0.0
    for world, steps in worlds:
        step, position = saved
        for _ in range(steps):
            step, now = step + 1, now + 1
            for rank in range(world):
                place = {"node": rank, "rank": rank, "world": world, "first": position + rank * COUNT}
                lines.append(commit(now + rank / 100, step, **place))
            position += world * COUNT
            if step % saved_every == 0:
                saved = (step, position)
    return lines


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 7)), min_size=1, max_size=6))
def test_each_sample_counts_once_for_any_number_of_roll_backs(worlds: list[tuple[int, int]]) -> None:
    samples = history.lineage_samples(stream(worlds))
    assert (samples.lost, samples.repeated, samples.problems) == (0, 0, ())


def test_part_of_a_rank_that_was_killed_before_it_could_write_counts() -> None:
    lines = stream([(3, 5)])
    silent = max(x.at for x in lines if x.rank == 2)
    samples = history.lineage_samples([x for x in lines if not (x.rank == 2 and x.at == silent)])
    assert (samples.committed, samples.lost) == (3 * 5 * COUNT, 0)


def test_samples_are_lost_if_the_position_jumps_ahead() -> None:
    lines = [commit(1, 1, world=1), commit(2, 2, world=1, first=2 * COUNT)]
    assert history.lineage_samples(lines).lost == COUNT


def test_samples_are_repeated_if_the_position_falls_back_without_the_step() -> None:
    lines = [commit(1, 1, world=1), commit(2, 2, world=1)]
    assert history.lineage_samples(lines).repeated == COUNT


def test_a_rank_that_trained_on_anothers_samples_is_a_problem() -> None:
    lines = [commit(1, 1), commit(1, 1, node=1, rank=1, first=0)]
    assert history.lineage_samples(lines).problems == ("step 1: rank 1 began at sample 0, not at 4",)


def test_samples_of_a_shard_are_repeated_by_a_new_process_and_lost_where_it_skipped_some() -> None:
    shard = {"node": 2, "rank": 2}
    lines = [commit(1, 1, **shard), commit(2, 2, **shard, first=COUNT), commit(3, 3, **shard, pid=9)]
    lines += [commit(4, 4, **shard, pid=9, first=3 * COUNT), commit(1, 1)]
    samples = history.sharded_samples(lines)
    assert (samples.committed, samples.repeated, samples.lost) == (5 * COUNT, COUNT, COUNT)


def test_a_run_without_a_step_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="no step was committed"):
        history.lineage_samples([])


def test_rolled_back_is_the_part_of_the_work_that_does_not_count() -> None:
    assert history.rolled_back(stream([(2, 5), (2, 3)], saved_every=3)) == pytest.approx(2 / 8)


# ---- undisturbed ---------------------------------------------------------------------------------------------------
def quiet(recording: Recording) -> dict[int, tuple[int, float]]:
    """World size -> number of undisturbed steps, and the longest."""
    by_node = analysis.lines_by_node(recording.lines)
    found = analysis.undisturbed(analysis.quiet_windows(recording, by_node), by_node)
    return {u.size: (u.steps, u.longest) for u in found}


def test_undisturbed_steps_are_those_of_all_first_nodes_after_the_start_and_before_the_first_event() -> None:
    alone = [commit(t, step, world=1) for step, t in enumerate([1, 2])]
    together = [commit(t, step) for step, t in enumerate([3, 5, 7, 8, 8.5, 9.75, 11])]
    assert quiet(Recording(0.0, (0, 1), (fired(),), [*alone, *together])) == {2: (2, 1.25)}


def test_steps_between_events_are_undisturbed_from_the_end_of_one_to_the_preparation_of_the_next() -> None:
    start = [commit(t, step) for step, t in enumerate([1, 2, 3, 4, 5])]
    between = [commit(t, 9, world=3) for t in [11, 13, 14, 16, 19, 21]]
    events = (fired(at=6, until=12), fired(at=20, until=30, begun=18, recovered=False))
    assert quiet(Recording(0.0, (0, 1), events, [*start, *between])) == {2: (1, 1), 3: (2, 2)}


def test_figures_of_undisturbed_steps_are_by_size() -> None:
    lines = [commit(i / 100 * (i + 1) / 2, i) for i in range(101)]  # steps of 0.01 s to 1 s
    (found,) = analysis.undisturbed([(0, 60)], {0: lines})
    assert (found.size, found.steps, found.p95) == (2, 100, pytest.approx(0.95))
    assert (found.median, found.longest) == (pytest.approx(0.505), pytest.approx(1.0))


# ---- tables over runs ----------------------------------------------------------------------------------------------
def run(stall: float, pause: float | None, *, recovered: bool = True, rescales: tuple[Phases, ...] = ()) -> RunResult:
    event = EventResult(
        label="grow", from_size=2, to_size=3, recovered=recovered, stall=stall, time_to_size=pause,
        redone=0, discarded=0, pids_changed=False, rescales=rescales,
    )  # fmt: skip
    steps = (Undisturbed(size=3, steps=10, median=stall / 10, p95=0.3, longest=stall / 5),)
    samples = Samples(committed=10, lost=1, repeated=0)
    return RunResult(
        system="elastrain", start=1.0, events=(event,), samples=samples, rolled_back=0.0, undisturbed=steps
    )


def test_figures_are_minimum_median_and_maximum_over_the_runs_that_have_them() -> None:
    runs = [run(1, 4), run(3, None, recovered=False), run(2, 5)]
    (row,) = report.events_table(runs, "").rows
    assert row[:5] == ("grow 2→3", "elastrain", "2 of 3", ">1.00 / 2.00 / 3.00", "4.00 / 4.50 / 5.00")
    (row,) = report.systems_table(runs, "").rows
    assert row == ("elastrain", "3", "1.00", "30", "3", "0", "0%")


def test_undisturbed_steps_of_several_runs_are_medians_and_the_longest_of_all() -> None:
    (row,) = report.undisturbed_table([run(1, 4), run(2, 4), run(3, 4)], "").rows
    assert row == ("elastrain", "3", "30", "200", "300", "600")


def test_phases_are_medians_over_the_rescales_of_the_same_kind() -> None:
    lost = [Phases(name="Lost 3→2", pause=p, seconds={"connect": p / 2}) for p in (1, 2, 6)]
    grow = Phases(name="Grow 2→3", pause=1, seconds={"transfer": 0.5})
    runs = [run(1, 1, rescales=(lost[0], grow)), run(1, 1, rescales=tuple(lost[1:]))]
    rows = report.phases_table([*runs, runs[0].model_copy(update={"state_mib": 64})], "").rows
    assert [row[1:] for row in rows] == [
        ("elastrain", "Lost 3→2", "2000", "connect 1000"),
        ("elastrain", "Grow 2→3", "1000", "transfer 500"),
        ("elastrain, 64 MiB", "Lost 3→2", "1000", "connect 500"),
        ("elastrain, 64 MiB", "Grow 2→3", "1000", "transfer 500"),
    ]


def test_runs_with_other_states_are_apart() -> None:
    small, large = run(1, 4), run(3, 8).model_copy(update={"state_mib": 1024})
    rows = report.events_table([small, large, small], "").rows
    assert [row[1:4] for row in rows] == [
        ("elastrain", "2 of 2", "1.00"),
        ("elastrain, 1024 MiB", "1 of 1", "3.00"),
    ]


def test_a_goal_is_judged_with_the_undisturbed_step_of_the_same_system() -> None:
    runs = [run(0.2, 3), run(0.4, 3)]
    rows = report.goals_table(runs, 2.0, "").rows
    assert rows[0] == ("grow 2→3", "elastrain", "stall ≤ one step + 0.1 s", "0.13", "0.30", "0.40", "no")
    assert rows[1][-1] == "yes"
    assert report.goals_table([r.model_copy(update={"system": "other"}) for r in runs], 2.0, "").rows == ()


def test_undisturbed_training_counts_rescales_losses_steps_and_bytes() -> None:
    event = fired(at=0.0, until=120.0, label="train", survivors=(0, 1, 2), from_size=3, carried=3_000_000_000)
    lines = [commit(t, t, node=node, world=3) for node in range(3) for t in range(1, 101)]
    rescales = ({"reason": "Lost", "from_size": 3, "to_size": 2, "step": 50, "pause_seconds": 1.0, "phases": {}},)
    train = analysis.event_result(event, analysis.lines_by_node(lines), rescales)
    (row,) = report.training_table([run(1, 1).model_copy(update={"events": (train,)}), run(1, 1)], "").rows
    assert row == ("elastrain", "3", "yes", "2.0", "1", "1", "100", "1.00", "3.0")


def test_a_leak_is_named_in_the_table_and_too_few_footprints_are_not_judged() -> None:
    series = tuple(Footprint(threads=7 + i, fds=20, private_kib=90_000) for i in range(11))
    leaking = run(1, 1).model_copy(update={"footprints": {"node-0": series, "node-1": series[:2]}})
    rows = report.growth_table([leaking], 50, "").rows
    assert [row[-1] for row in rows] == ["threads", "not measured"]
