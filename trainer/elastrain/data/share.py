"""Where a rank stands while it computes a step, and what of the step's global batch is its to compute."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """What one rank computes of a global batch."""

    part: int
    """From 0; ``parts``, the one after the last, is nobody's: that of a rank which looks on."""
    parts: int
    """Runs that the batch is cut into."""

    @property
    def looks_on(self) -> bool:
        """Whether the rank computes nothing of the batch, and gets the gradients of the others."""
        return self.part == self.parts


class Place(NamedTuple):
    """One rank among the others."""

    generation: int
    rank: int
    world_size: int

    @property
    def share(self) -> Share:
        """What it computes where nobody looks on."""
        return Share(self.rank, self.world_size)
