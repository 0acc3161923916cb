"""Exhaustive search: every world that can be reached, each checked against the promises."""

from __future__ import annotations

from dataclasses import dataclass

from commit.actions import following
from commit.world import STALE, Bounds, Rank, Stage, World


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    worlds: int
    broken: str = ""
    """The promise that does not hold; empty: all hold."""
    trace: tuple[str, ...] = ()
    """A shortest sequence of actions that breaks it."""


def search(bounds: Bounds) -> Found:
    """Breadth first, so that a counterexample is as short as any."""
    start = bounds.start
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    layer = [start]
    while layer:
        further = []
        for world in layer:
            for name, after in following(bounds, world):
                new = after not in came_from
                if (new or _commits(world, after)) and (why := broken_promise(bounds, world, after)):
                    return Found(len(came_from), why, (*_trace(came_from, world), name))
                if new:
                    came_from[after] = (world, name)
                    further.append(after)
        layer = further
    return Found(len(came_from))


def _trace(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    names = []
    while (step := came_from[world]) is not None:
        world, name = step
        names.append(name)
    return tuple(reversed(names))


def _commits(before: World, after: World) -> bool:
    """Whether a rank commits: that may be wrong on one way to a world and right on another."""
    return any(was.history != now.history for was, now in zip(before.ranks, after.ranks, strict=True))


def broken_promise(bounds: Bounds, before: World, world: World) -> str:
    """The promise that the step from ``before`` to ``world`` breaks; empty: none."""
    held = [r for r in world.ranks if r.alive and not r.lost]
    if any(STALE in r.history for r in world.ranks):
        return "a step is committed only with the complete gradients of all ranks"
    for was, now in zip(before.ranks, world.ranks, strict=True):
        if was.alive and now.alive and not was.lost and now.step < was.step:
            return "a committed step is not lost while its rank lives"
        commits = now.step > was.step and now.generation == was.generation and not was.broken
        if commits and any(g > now.generation for r in world.ranks for g in r.history):
            return "two generations never train at once"
        ended = was.alive and not now.alive and world.kills == before.kills
        if ended and not (world.kills or world.losses):
            return "no state is lost without the loss of a rank"
    if not bounds.without and (why := _broken_property(bounds, before, world)):
        return why
    entered = [r for r in held if r.generation == len(world.generations) and not r.broken]
    started = len(world.generations) > 1 and any(
        was.generation < now.generation for was, now in zip(before.ranks, world.ranks, strict=True)
    )
    if started and len({r.history for r in entered}) > 1:
        return "a generation begins with one state on all its ranks"
    return ""


def _broken_property(bounds: Bounds, before: World, world: World) -> str:
    """Of the tree, when a rank counts a step by the sum of the votes that it has itself."""
    for number, (was, now) in enumerate(zip(before.ranks, world.ranks, strict=True)):
        if now.step > was.step and now.generation == was.generation and not was.broken:
            for member in world.members(was.generation):
                if not _has_voted(bounds, before, member, was):
                    return "a rank that has the sum knows that all have voted"
                if member != number and not _comes(bounds, before, member, was):
                    return "the others get the sum too, unless a rank on their way is lost or gives up"
    return ""


def _has_voted(bounds: Bounds, world: World, member: int, of: Rank) -> bool:
    """Whether ``member`` has sent its vote for the step of rank ``of``, or as the root the sum of all."""
    members = world.members(of.generation)
    above, below = bounds.parent(members, member), bounds.children(members, member)
    if above:
        return bool(world.sent & bounds.bit(of.generation, of.step, 1, member, *above))
    rank = world.ranks[member]
    sent = any(world.sent & bounds.bit(of.generation, of.step, 2, member, child) for child in below)
    return sent or (rank.generation == of.generation and rank.step == of.step and rank.stage is Stage.HAS)


def _comes(bounds: Bounds, world: World, member: int, of: Rank) -> bool:
    """Whether the sum of the votes is in the sockets of ``member``, or of a rank above it that will pass it on."""
    if world.has_left(member, of.generation):
        return True
    rank = world.ranks[member]
    if rank.step > of.step or rank.stage is Stage.HAS:
        return True
    above = bounds.parent(world.members(of.generation), member)
    if not above or rank.stage is not Stage.PASSED:
        return False
    if world.sent & bounds.bit(of.generation, of.step, 2, *above, member):
        return True
    parent = world.ranks[above[0]]
    passed_on = parent.generation == of.generation and (parent.step > of.step or parent.stage is Stage.HAS)
    return world.has_left(above[0], of.generation) or (not passed_on and _comes(bounds, world, above[0], of))
