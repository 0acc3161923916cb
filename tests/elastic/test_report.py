"""Progress and rescale records as rank 0 keeps them."""

from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.report import KEPT_RESCALES, Reporter, Switch

GENERATION = Generation(
    number=2,
    reason="Grow",
    leader="a.0",
    members=(GenerationMember(id="a.0", worker="a", address="h", store_port=1, slots=3, rank_offset=0),),
)


def switch(since: float, entered: float) -> Switch:
    phases = {"wait": 0.0, "sync": 0.1, "attach": 0.0}
    return Switch(GENERATION, from_size=2, step=10, lost_steps=0, since=since, entered=entered, phases=phases)


def test_pause_is_the_time_between_two_commits_if_a_switch_lies_between_them() -> None:
    reporter = Reporter()
    reporter.committed(10.0, 1.0)
    reporter.entered(switch(since=10.0, entered=10.2))
    reporter.committed(10.5, 0.9)
    (rescale,) = reporter.rescales
    assert (rescale.pause_seconds, rescale.from_size, rescale.to_size) == (0.5, 2, 3)
    assert rescale.phases["first_step"] == 0.3


def test_step_time_leaves_out_the_pause() -> None:
    reporter = Reporter()
    for t in (1.0, 2.0, 3.0):
        reporter.committed(t, 1.0)
    reporter.entered(switch(since=3.0, entered=50.0))
    reporter.committed(60.0, 1.0)
    assert reporter.step_seconds == 1.0


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
