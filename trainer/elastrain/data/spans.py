"""How many of the script's batches one step takes, by its position. Pure.

A job with ``spec.batch`` may take several consecutive batches of the script in one step. The position then still counts
the script's batches, so that epochs, ends of loops and intervals mean what they mean without it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spans:
    """The same on all ranks, but for ``limit``."""

    factor: int = 1
    """Most batches of a step."""
    limit: int | None = None
    """Most samples of a loop body; None: as the script says."""
    end: int | None = None
    """Position at which the loop ends: a step ends there too."""
    stops: tuple[int, ...] = ()
    """A step ends at each multiple of these: the script's code runs there between two steps."""

    @property
    def single(self) -> Spans:
        """Of steps of one batch, with the same limit."""
        return Spans(limit=self.limit)

    def at(self, step: int, left_in_epoch: int) -> int:
        """Batches of the step that begins at position ``step``: ``factor``, or fewer before one of the ends."""
        left = [left_in_epoch, *(every - step % every for every in self.stops)]
        if self.end is not None and step < self.end:
            left.append(self.end - step)
        return min(self.factor, *left)


ONE = Spans()
"""Each step is one batch of the script."""
