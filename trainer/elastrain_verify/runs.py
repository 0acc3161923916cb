"""The runs of a verification, cheap ones first: each has one thing more than the run before. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

FEWEST_STEPS = 6
"""With fewer steps a run leaves no room for a disturbance."""


class Kind(StrEnum):
    """What a run has that the ones before it had not."""

    REFERENCE = "reference"
    REPEAT = "repeat"
    ONE = "one worker"
    SEVERAL = "several workers"
    GROWTH = "growth"
    LOSS = "loss"
    DRAIN = "drain"
    RESUME = "resume"


class Place(StrEnum):
    """Where the ranks are when the disturbance happens."""

    BETWEEN = "between two steps"
    BODY = "within a step"
    BACKWARDS = "between two backwards of a step"
    TRANSFER = "while state travels"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of the script."""

    name: str
    """For folders and ``--json``."""
    kind: Kind
    title: str
    workers: int
    """At the beginning."""
    at: int = 0
    """Committed steps after which the disturbance happens."""
    place: Place = Place.BODY
    then: int = 0
    """Workers after the disturbance."""
    seed: int = 0
    """Added to that of the data."""


def shards_of(shards: int | str, nproc: int, most: int) -> tuple[int, ...]:
    """Numbers of ranks that hold a model together, with up to ``most`` workers of ``nproc`` ranks. ``shards``: as in
    ``spec.parallelism``."""
    if isinstance(shards, str):
        return tuple(range(1, most * nproc + 1))
    return (shards,) if shards > 1 else ()


def plan(
    steps: int, most: int, *, several_backwards: bool = False, kills: Sequence[int] = (), seed: int = 0
) -> Iterator[Run]:
    """The runs after the first reference. ``steps``: that it has committed. ``most``: workers, at least 2.

    ``several_backwards``: a loop body has them. ``kills``: steps in whose bodies a rank is killed, by default one in
    the middle. ``seed``: of their data.
    """
    yield Run("repeat", Kind.REPEAT, "the reference again", 1)
    yield Run("one", Kind.ONE, "1 worker, undisturbed", 1)
    for workers in range(2, most + 1):
        yield Run(f"workers-{workers}", Kind.SEVERAL, f"{workers} workers, undisturbed", workers)
    if steps < FEWEST_STEPS:
        return
    early, middle, few = max(steps // 4, 1), steps // 2, most - 1
    yield Run("growth", Kind.GROWTH, f"a growth from {few} to {most} after step {early}", few, early, then=most)
    for number, at in enumerate(kills or [middle], start=1):
        title = f"kill -9 {Place.BODY.value}, after step {at}" + f", with other data ({seed})" * bool(seed)
        name = f"kill-within-{number}" if number > 1 else "kill-within"
        yield Run(name, Kind.LOSS, title, most, at, Place.BODY, then=most, seed=seed)
    losses = {"backwards": (Place.BACKWARDS, middle)} if several_backwards else {}
    for name, (place, at) in (losses | {"between": (Place.BETWEEN, early)}).items():
        title = f"kill -9 {place.value}, after step {at}"
        yield Run(f"kill-{name}", Kind.LOSS, title, most, at, place, then=most)
    title = f"kill -9 of a joiner {Place.TRANSFER.value}, after step {early}"
    yield Run("kill-joiner", Kind.LOSS, title, few, early, Place.TRANSFER, then=most)
    yield Run("drain", Kind.DRAIN, f"a drain from {most} to {few} after step {middle}", most, middle, then=few)
    title = f"a resume from a checkpoint of step {middle}, from {few} to {most} workers"
    yield Run("resume", Kind.RESUME, title, few, middle, then=most)
