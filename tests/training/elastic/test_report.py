"""Progress and rescale records as rank 0 keeps them."""

from dataclasses import replace

from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.group.report import KEPT_RESCALES, Reporter, Switch, Times

GENERATION = Generation(
    number=2,
    reason="Grow",
    leader="a.0",
    members=(GenerationMember(id="a.0", worker="a", address="h", store_port=1, slots=3, rank_offset=0),),
)


def switch(since: float, entered: float, **times: float) -> Switch:
    known = {"broken": None, "heard": since - 2.0, "connected": since - 1.5, "synchronised": entered + 0.125} | times
    return Switch(GENERATION, 0, 2, 10, 0, Times(last_commit=since, entered=entered, **known))


def test_pause_is_the_time_between_two_commits_if_a_switch_lies_between_them() -> None:
    reporter = Reporter()
    reporter.committed(10.0, 1.0)
    reporter.entered(switch(since=10.0, entered=10.25))
    reporter.committed(10.5, 0.9)
    (rescale,) = reporter.rescales
    assert (rescale.pause_seconds, rescale.from_size, rescale.to_size) == (0.5, 2, 3)


def test_connecting_is_no_part_of_the_pause_if_the_change_was_planned() -> None:
    times = switch(since=10.0, entered=10.0).times
    assert times.phases(first_commit=10.5) == {"connect": 0.5, "transfer": 0.125, "first_step": 0.375}


def test_phases_add_up_to_the_pause_if_a_peer_was_lost() -> None:
    times = switch(since=10.0, broken=10.25, heard=10.5, connected=11.0, entered=11.0, synchronised=11.5).times
    phases = times.phases(first_commit=12.0)
    assert phases == {"detect": 0.25, "decide": 0.25, "connect": 0.5, "transfer": 0.5, "first_step": 0.5}
    assert sum(phases.values()) == 2.0


def test_decide_takes_no_time_if_the_next_generation_was_known_before_the_loss() -> None:
    times = switch(since=10.0, broken=10.5, heard=10.25, connected=10.75, entered=11.0).times
    phases = times.phases(first_commit=11.25)
    assert (phases["detect"], phases["decide"], phases["connect"]) == (0.5, 0.0, 0.25)


def test_step_time_leaves_out_the_pause() -> None:
    reporter = Reporter()
    for t in (1.0, 2.0, 3.0):
        reporter.committed(t, 1.0)
    reporter.entered(switch(since=3.0, entered=50.0))
    reporter.committed(60.0, 1.0)
    assert reporter.step_seconds == 1.0


def test_step_time_of_another_number_of_ranks_is_replaced_by_the_next_step() -> None:
    reporter = Reporter()
    for t in (1.0, 2.0, 3.0):
        reporter.committed(t, 1.0)
    change = switch(since=3.0, entered=4.0)
    reporter.entered(replace(change, from_size=change.generation.world_size + 1))
    reporter.committed(5.0, 1.0)
    assert reporter.step_seconds == 1.0, "the first step after a rescale is no step time"
    reporter.committed(5.25, 1.0)
    assert reporter.step_seconds == 0.25


def test_a_report_is_due_once_a_second_and_at_once_after_a_rescale() -> None:
    reporter = Reporter()
    assert reporter.due(0.0)
    assert not reporter.due(0.9)
    reporter.entered(switch(since=0.0, entered=0.9))
    reporter.committed(0.95, 1.0)
    assert reporter.due(0.95)
    assert not reporter.due(1.0)


def test_only_the_newest_rescales_are_kept() -> None:
    reporter = Reporter()
    for t in range(30):
        reporter.entered(switch(since=t, entered=t))
        reporter.committed(t + 0.5, 1.0)
    assert len(reporter.rescales) == KEPT_RESCALES


def test_code_between_loops_is_no_part_of_a_pause_or_of_a_step() -> None:
    reporter = Reporter()
    for now in (10.0, 10.5):
        reporter.committed(now, 1.0)
    reporter.left_loop()
    reporter.entered(switch(since=60.0, broken=60.0, entered=60.25))
    reporter.resumed(60.5)
    reporter.committed(100.0, 0.9)
    (rescale,) = reporter.rescales
    assert rescale.pause_seconds == 0.5
    assert reporter.step_seconds == 0.5
