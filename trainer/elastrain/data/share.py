"""A rank's position in a generation, and its share of a global batch."""

from __future__ import annotations

from typing import NamedTuple

from elastrain.api.shape import ONE_RANK, Shape


class Share(NamedTuple):
    """The part of a global batch that one rank computes."""

    part: int
    """From 0. ``part == parts``, one past the last, marks a learner."""
    parts: int
    """Number of parts that the batch is cut into."""
    weights: tuple[int, ...] = ()
    """Of all parts, whose lengths are in proportion to them; empty: equal parts."""

    @property
    def learner(self) -> bool:
        """Whether the rank computes no part of the batch, and receives the gradients of the others."""
        return self.part == self.parts


class Place(NamedTuple):
    """A rank's position in its generation."""

    generation: int
    rank: int
    world_size: int
    shape: Shape = ONE_RANK
    """Of a replica: which ranks compute the same samples."""

    @property
    def share(self) -> Share:
        """The share of this rank in a step without learners."""
        return Share(*self.shape.part(self.rank, self.world_size))
