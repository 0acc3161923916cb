"""Event × what a script does at a step boundary × how the state travels, on the real code of the ranks.

A cell holds two ranks in a step, prepares the event for the boundary behind it, and lets the job run to its end. All
ranks then have the model, the optimizer's settings and the notes of a job of one rank to which nothing happened, and
the audit is clean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from bench_harness import played_ranks
from boundary_scripts import (
    LAST,
    SCRIPTS,
    STEPS,
    break_of_all,
    evaluation_after_a_loop,
    every_two,
    kept_gradients,
    large_statistics,
    loops_by_epoch,
    statistics,
)
from elastrain.api.settings import CheckpointSpec, RankSettings
from elastrain.elastic.state import portions, transfer
from elastrain_audit.judge import verify
from threaded_world import Script, ThreadWorld, thread_world

PATIENCE = 20.0
Event = Callable[[ThreadWorld, int], None]
"""Prepares what happens at the boundary behind step number ``n - 1``, in whose loop body a and b are held."""


# -- events ----------------------------------------------------------------------------------------------------------
def join(world: ThreadWorld, _: int) -> None:
    world.begin("c")
    world.propose("a", "b", "c")
    world.connected("a", "b")


def two_join(world: ThreadWorld, _: int) -> None:
    world.begin("c", "d")
    world.propose("a", "b", "c", "d")
    world.connected("a", "b")


def drain(world: ThreadWorld, _: int) -> None:
    world.propose("a")
    world.connected("a", "b")


def drain_of_rank_0(world: ThreadWorld, _: int) -> None:
    world.propose("b")
    world.connected("a", "b")


def replace(world: ThreadWorld, _: int) -> None:
    """c comes and b leaves, in one switch."""
    world.begin("c")
    world.propose("a", "c")
    world.connected("a", "b")


def lost(point: str, who: str = "b") -> Event:
    def event(world: ThreadWorld, step: int) -> None:
        world.kills[who] = point, step

    event.__name__ = f"{who} lost {point}"
    return event


def lost_as_it_grows(point: str, who: str = "b") -> Event:
    """A joiner would enter at the boundary where a rank is lost."""

    def event(world: ThreadWorld, step: int) -> None:
        join(world, step)
        world.kills[who] = point, step

    event.__name__ = f"{who} lost {point}, as c joins"
    return event


def joiner_lost(point: str) -> Event:
    """The generation breaks while it forms."""

    def event(world: ThreadWorld, step: int) -> None:
        world.begin("c")
        world.kills["c"] = point, 0
        world.propose("a", "b", "c")
        world.connected("a", "b")

    event.__name__ = f"joiner lost {point}"
    return event


def both_new(world: ThreadWorld, step: int) -> None:
    """A generation is replaced by another one before the ranks agree on it."""
    join(world, step)
    world.begin("d")
    world.propose("a", "b", "c", "d")
    world.connected("a", "b")


EVENTS: tuple[Event, ...] = (
    join,
    two_join,
    both_new,
    drain,
    drain_of_rank_0,
    replace,
    lost("body"),
    lost("body", "a"),
    lost("before leave_loop"),
    lost("before exchange"),
    lost("after exchange"),
    lost("after exchange", "a"),
    lost("pause"),
    lost("batch", "a"),
    lost_as_it_grows("before synchronise"),
    lost_as_it_grows("after synchronise"),
    lost_as_it_grows("after synchronise", "a"),
    lost_as_it_grows("before leave_loop"),
    lost_as_it_grows("after exchange"),
    joiner_lost("before synchronise"),
    joiner_lost("before receive"),
    joiner_lost("after receive"),
    joiner_lost("after synchronise"),
)


# -- cells -----------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played_ranks, "PATIENCE", PATIENCE)


@cache
def undisturbed(script: Script, folder: Path) -> dict[str, Any]:
    with thread_world(folder, script) as world:
        world.begin("a")
        world.propose("a")
        world.lead()
        final = world.thread("a").final
    assert final is not None
    return final


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Script], dict[str, Any]]:
    return lambda script: undisturbed(script, KNOWN.setdefault(script, tmp_path_factory.mktemp("undisturbed")))


KNOWN: dict[Script, Path] = {}


def run(
    folder: Path,
    script: Script,
    event: Event,
    step: int | None,
    settings: RankSettings | None = None,
    ranks: tuple[str, ...] = ("a", "b"),
) -> dict[str, Any]:
    """What each rank has at its end that finishes. ``step``: None: the last one."""
    step = step or LAST.get(script.__name__, STEPS)
    with thread_world(folder, script, settings) as world:
        world.allow(step - 1)
        world.begin(*ranks)
        world.propose(*ranks)
        world.hold(*ranks, step=step - 1)
        event(world, step)
        world.allow(1 << 30)
        world.lead()
        ends = {name: world.thread(name).final for name in world.ranks}
        assert verify(world.audit).ok, verify(world.audit)
    finished = {name: end for name, end in ends.items() if end is not None}
    assert finished, "no rank has finished"
    return finished


def assert_same(ends: dict[str, dict[str, Any]], expected: dict[str, Any]) -> None:
    for name, end in ends.items():
        assert (end["step"], end["notes"]) == (expected["step"], expected["notes"]), name
        assert end["lr"] == pytest.approx(expected["lr"], rel=1e-9), name
        for key, value in expected["state"].items():
            own = end["state"][key]
            assert (own.dtype, own.shape) == (value.dtype, value.shape), (name, key)
            if value.is_floating_point() and value.dtype.itemsize == 8:
                assert torch.allclose(own, value, rtol=0, atol=1e-10), (name, key)
            else:
                assert own.reshape(-1).view(torch.uint8).equal(value.reshape(-1).view(torch.uint8)), (name, key)


BOUNDARIES: dict[Script, tuple[int | None, ...]] = {break_of_all: (2, 3, 8, None)}
"""Those before which something happens, of a script; 8 is in the loop behind the one that was left by ``break``."""


def cells(in_ci: Callable[[Script, Event, int | None], bool]) -> list[Any]:
    """All of them; the nightly tests run those that ``in_ci`` leaves out."""
    return [
        pytest.param(
            script, event, step,
            id=f"{script.__name__}, {event.__name__}, {step or 'last'}".replace("_", " "),
            marks=() if in_ci(script, event, step) else pytest.mark.nightly,
        )
        for script in SCRIPTS for event in EVENTS for step in BOUNDARIES.get(script, (2, 3, None))
    ]  # fmt: skip


AFTER_EXCHANGE = next(event for event in EVENTS if event.__name__ == "b lost after exchange")


@pytest.mark.parametrize(
    ("script", "event", "step"),
    cells(lambda _, event, step: step == 3 and event in (join, AFTER_EXCHANGE)),
)
def test_the_model_is_that_of_an_undisturbed_job_if_its_state_is_small(tmp_path, expected, script, event, step):
    assert_same(run(tmp_path / "w", script, event, step), expected(script))


@pytest.mark.parametrize(
    ("script", "event", "step"),
    cells(lambda script, event, step: step == 3 and event is join and script in (every_two, statistics)),
)
def test_the_model_is_that_of_an_undisturbed_job_if_its_state_travels_in_portions(
    tmp_path, expected, script, event, step, monkeypatch
):
    wanted = expected(script)
    monkeypatch.setattr(transfer, "SMALL_BYTES", 64)
    monkeypatch.setattr(portions, "MIN_BYTES", 0)
    assert_same(run(tmp_path / "w", script, event, step), wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("event", [join, replace, AFTER_EXCHANGE])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_model_is_that_of_an_undisturbed_job_if_a_checkpoint_is_due_after_each_step(
    tmp_path, expected, script, event
):
    settings = RankSettings(checkpoint=CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=1))
    assert_same(run(tmp_path / "w", script, event, 3, settings), expected(script))


# -- sharded models ----------------------------------------------------------------------------------------------------
GROUPS = ("a0", "a1", "b0", "b1")
"""Two groups of two shards each."""


def a_group_joins(world: ThreadWorld, _: int) -> None:
    world.begin("c0", "c1")
    world.propose(*GROUPS, "c0", "c1")
    world.connected(*GROUPS)


def a_group_is_drained(world: ThreadWorld, _: int) -> None:
    world.propose("a0", "a1")
    world.connected(*GROUPS)


def a_group_is_replaced(world: ThreadWorld, _: int) -> None:
    world.begin("c0", "c1")
    world.propose("a0", "a1", "c0", "c1")
    world.connected(*GROUPS)


def a_joiner_is_lost(world: ThreadWorld, _: int) -> None:
    world.begin("c0", "c1")
    world.kills["c1"] = "before receive", 0
    world.propose(*GROUPS, "c0", "c1")
    world.connected(*GROUPS)


GROUP_EVENTS: tuple[Event, ...] = (
    a_group_joins,
    a_group_is_drained,
    a_group_is_replaced,
    a_joiner_is_lost,
    *(lost(point, who) for point in ("body", "before exchange", "after exchange") for who in ("a1", "b1")),
)
SHARDED_SCRIPTS = tuple(s for s in SCRIPTS if s not in (statistics, large_statistics))
SHARDED_IN_CI = [
    (evaluation_after_a_loop, a_group_joins),
    (every_two, a_joiner_is_lost),
    (kept_gradients, a_group_joins),
    (loops_by_epoch, GROUP_EVENTS[-1]),
]


@pytest.mark.parametrize(
    ("script", "event"),
    [
        pytest.param(
            script, event,
            id=f"{script.__name__}, {event.__name__}".replace("_", " "),
            marks=() if (script, event) in SHARDED_IN_CI else pytest.mark.nightly,
        )
        for script in SHARDED_SCRIPTS for event in GROUP_EVENTS
    ],
)  # fmt: skip
def test_the_model_is_that_of_an_undisturbed_job_if_it_is_sharded(tmp_path, expected, script, event):
    ends = run(tmp_path / "w", script, event, 3, RankSettings(shards=2), GROUPS)
    groups = {name[0] for name in ends if name[0] + "0" in ends and name[0] + "1" in ends}
    assert groups, "no whole group has finished"
    for group in groups:  # a rank that is lost behind the last step leaves its mate, which finishes
        first, second = ends[f"{group}0"], ends[f"{group}1"]
        state = {name: torch.cat([value, second["state"][name]]) for name, value in first["state"].items()}
        assert_same({group: {**first, "state": state}, f"{group}1": {**second, "state": state}}, expected(script))
