"""A job of two ranks that a third one joins, and of which one is killed; the same job as one undisturbed rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench_harness.played_ranks import World


def join_and_kill(world: World, *, steps: int = 2, **run: Any) -> dict[str, Any]:
    """What ``a`` and ``c`` save, by rank: ``c`` joins ``a`` and ``b`` after ``steps`` steps, then ``b`` is killed.
    ``run``: as of :meth:`World.start`."""
    world.start("a", "b", **run)
    world.ready("a", "b")
    world.together("a", "b")
    world.progressed("a", steps)
    world.start("c", **run)
    world.ready("c")
    world.together("a", "b", "c")
    world.progressed("a", 2)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.together("a", "c")
    return world.finished("a", "c")


def undisturbed(world: World, folder: Path, **run: Any) -> dict[str, Any]:
    """What one rank saves, in a world of its own in ``folder``."""
    fixed = type(world)(folder, world.warm)
    fixed.start("f", **run)
    fixed.ready("f")
    fixed.propose("f")
    return fixed.finished("f")["f"]
