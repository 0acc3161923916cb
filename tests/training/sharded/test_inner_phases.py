"""What a loss does to collectives inside a group: where this rank is × who was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from elastrain.elastic.comm.peer import GroupLost, PeerLost
from elastrain.elastic.strategies.sharding import fsdp
from elastrain.elastic.strategies.sharding.inner_group import InnerGroup

NAME = "dp_shard"


class Played:
    """A communicator, and what carries the group in its generation."""

    def __init__(self) -> None:
        self.broken: str | None = None
        self.ends: list[Callable[[str], None]] = []
        self.mate_lost = self.aborted = False

    @property
    def over(self) -> str | None:
        return self.broken

    def ends_with(self, end: Callable[[str], None]) -> None:
        self.ends.append(end)

    def abort(self, cause: str) -> None:
        if self.broken is None:
            self.broken = cause
        for end in self.ends:
            end(cause)

    def run(self, name: str, arguments: Sequence[Any]) -> str:
        if self.mate_lost or self.aborted:
            raise PeerLost("gone")
        return "result"

    def close(self) -> None:
        pass


class Carried(Played):
    def abort(self, cause: str) -> None:
        self.aborted = True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serves, self.group = True, InnerGroup(NAME, 0, 2)
        self.communicator, self.carrier = Played(), Carried()
        self.comm = fsdp.ShardedComm(lambda: self.serves, [self.group])
        self.comm._communicator = self.communicator
        self.comm._carriers = {NAME: self.carrier}
        self.timers: list[float] = []
        monkeypatch.setattr(fsdp.threading, "Timer", self.timer)
        self.communicator.ends_with(lambda cause: self.comm._ends(self.communicator, cause))

    def timer(self, seconds: float, call: Callable[..., None], arguments: list[Any]) -> Any:
        self.timers.append(seconds)
        self.fire = lambda: call(*arguments)
        return type("Timer", (), {"start": lambda _: None})()

    def phase(self, name: str) -> None:
        self.comm.begin()
        self.serves = name != "outside"
        if name != "body":
            self.comm.vote()  # outside of bodies this rank has voted for its last step

    def collective(self) -> Any:
        out = torch.full((4,), float("nan"))
        result = self.comm.run(self.group, "_allgather_base", (out, torch.ones(2)))
        return "result" if result == "result" else out.tolist()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("phase", ["body", "update", "outside"])
def test_a_collective_has_its_result_in_a_healthy_generation(world: World, phase: str) -> None:
    world.phase(phase)
    assert world.collective() == "result"
    assert not world.comm.void


@pytest.mark.parametrize(("phase", "void"), [("body", False), ("update", True)])
def test_a_lost_mate_frees_the_other_groups_at_once_and_voids_an_update(world: World, phase: str, void: bool) -> None:
    world.phase(phase)
    world.carrier.mate_lost = True
    assert world.collective() == [1.0] * 4, "stand-ins"
    assert world.communicator.broken
    assert world.carrier.aborted, "its other mates wait"
    assert bool(world.comm.void) == void


def test_a_lost_mate_raises_where_no_step_discards_the_stand_ins(world: World) -> None:
    world.phase("outside")
    world.carrier.mate_lost = True
    with pytest.raises(GroupLost, match="outside of loop bodies"):
        world.collective()


def test_a_loss_in_another_group_ends_the_body_of_a_step_that_cannot_count(world: World) -> None:
    world.phase("body")
    world.communicator.abort("another group")
    assert world.carrier.aborted
    assert world.collective() == [1.0] * 4


@pytest.mark.parametrize("phase", ["update", "outside"])
def test_a_loss_in_another_group_breaks_no_update_and_no_collective_outside_until_the_next_step(
    world: World, phase: str
) -> None:
    """An update has a bound: a mate may be frozen."""
    world.phase(phase)
    world.communicator.abort("another group")
    assert world.collective() == "result"
    assert not world.comm.void
    assert world.timers == ([fsdp.UPDATE_SECONDS] if phase == "update" else [])
    world.comm.begin()
    assert world.carrier.aborted


def test_the_bound_of_an_update_ends_no_later_generation(world: World) -> None:
    world.phase("update")
    world.communicator.abort("another group")
    world.comm._communicator = Played()
    world.fire()
    assert not world.carrier.aborted


def test_stand_ins_of_a_late_commit_void_its_update(world: World) -> None:
    """The rank has left the generation of its vote, and has heard from its peers that the step counts."""
    world.phase("update")
    world.comm.leave()
    assert world.collective() == [1.0] * 4
    assert world.comm.void
