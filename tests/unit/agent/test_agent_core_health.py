"""The agent's reactions to a hanging rank, a straggler, and a job below its minimum."""

from __future__ import annotations

import signal

import pytest

import builders
from elastrain.agent.core.events import (
    End,
    KillRank,
    KillRanks,
    PrintStacks,
    Publish,
    PublishProgress,
    Pulse,
    Reincarnate,
    Send,
)
from elastrain.agent.core.health import NAME_SECONDS
from elastrain.agent.core.machine import Core
from elastrain.agent.core.restart import MAX_RESTARTS
from elastrain.api.messages import Exit, Hello, Report
from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.api.records import Health, Outcome, Phase, Progress, Target


def hangs(story, rank: int = 0, world_size: int = 2) -> list:
    """The agent checks now, again after the bound for naming, and twice more after the bound for a restart."""
    page = {rank: Beat(Where.BODY, story.now, 1, world_size, commits=5, compute=0.1)}
    effects = story.event(Pulse(story.core.incarnation, page))
    for seconds in (NAME_SECONDS + 1, 300.0, 1.0):
        story.now += seconds
        effects += story.event(Pulse(story.core.incarnation, page))
    return effects


def of(effects, kind) -> list:
    return [e for e in effects if isinstance(e, kind)]


@pytest.fixture
def waited_for(story, make_generation, make_member):
    """Worker a trains with b, which reports that it waits."""
    story.training_in(make_generation(1, "a", "b"))
    story.sees(others=(make_member("b", generation=1, health="waiting"),))
    return story


def test_a_hanging_rank_is_published_its_stacks_printed_and_it_alone_killed(waited_for) -> None:
    effects = hangs(waited_for)
    (stacks,) = of(effects, PrintStacks)
    assert stacks == PrintStacks(0, 1000), "the pid is that of Hello"
    (kill,) = of(effects, KillRank)
    assert kill.why.startswith("local rank 0 hung in the script's code for 36")
    assert [(p.health, p.health_rank) for p in of(effects, Publish)] == [(Health.STUCK, 0)]


def test_it_restarts_like_a_killed_rank(waited_for) -> None:
    hangs(waited_for)
    effects = waited_for.exits(signal=9)
    (why,) = of(effects, KillRanks)
    assert "hung in the script's code" in why.why
    assert Reincarnate() in effects


def test_the_worker_fails_with_the_cause_if_its_rank_hangs_repeatedly(story, make_generation) -> None:
    story.ready()
    for _ in range(MAX_RESTARTS):
        hangs(story, world_size=1)
        story.exits(signal=9)
        story.registered()
        story.says(Hello(local_rank=0, pid=1))
        story.now -= 300  # the budget limits kills per time
    hangs(story, world_size=1)
    (end,) = of(story.exits(signal=9), End)
    last = end.termination
    assert (last.outcome, last.reason, last.signal) == (Outcome.FAILED, "RankStuck", signal.SIGKILL)
    assert "hung in the script's code" in last.message and "no restarts are left" in last.message


def test_pages_of_an_earlier_incarnation_are_ignored(waited_for) -> None:
    old = Pulse(waited_for.core.incarnation - 1, {0: Beat(Where.BODY, 0.0, 1, 2, commits=5)})
    waited_for.now += 1000
    assert waited_for.event(old) == []


def test_figures_cause_no_writes(waited_for) -> None:
    for i in range(100):
        waited_for.now += 1
        page = {0: Beat(Where.BODY, waited_for.now, 1, 2, commits=i, compute=0.1 + i / 1000, total=0.3)}
        assert waited_for.event(Pulse(1, page)) == []


def test_rank_0s_agent_adds_the_stragglers_to_progress(story, make_generation, make_member) -> None:
    story.training_in(make_generation(1, "a", "b"))
    story.sees(others=(make_member("b", generation=1, health="slow"),))
    progress = Progress(generation=1, world_size=2, members=2, step=5)
    (published,) = of(story.says(Report(progress=progress)), PublishProgress)
    assert published.progress == progress.model_copy(update={"stragglers": ("b",)})


def test_a_worker_resigns_and_drains_if_the_job_is_below_its_minimum_for_too_long(new_story) -> None:
    story = new_story()
    story.core = Core(builders.settings(min_timeout=100))
    story.target = Target(min=2, max=4, desired=2)
    story.ready()
    story.seen()
    pulse = Pulse(1, {})
    story.event(pulse)
    story.now += 50
    (said,) = of(story.event(pulse), Publish)
    assert (said.health, said.phase) == (Health.BELOW_MIN, Phase.READY)
    story.now += 50
    effects = story.event(pulse)
    (said,) = of(effects, Publish)
    assert said.phase is Phase.LEAVING
    (told,) = [e.message for e in of(effects, Send) if isinstance(e.message, Exit)]
    assert told.reason == "fewer than minReplicas members were ready for 100 s"
    (end,) = of(story.leaves(), End)
    assert (end.termination.outcome, end.termination.message) == (Outcome.DRAINED, told.reason)
