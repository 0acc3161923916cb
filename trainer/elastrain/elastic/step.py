"""The step that is being computed."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.data.order import Slice


@dataclass(slots=True)
class Step:
    """One execution of one step on this rank: its micro-batches, one after the other."""

    number: int
    parts: tuple[Slice, ...]
    """The micro-batches of this rank."""
    place: tuple[int, int, int]
    """Generation, rank and world size that it is computed in."""
    share: tuple[int, int]
    """The global batch is cut for ``share[1]`` ranks, and this one computes part ``share[0]``; a rank that looks on
    comes after the last part."""
    warm_up: bool = False
    begun: int = 0
    """Micro-batches whose loop body has begun."""
    done: int = 0
    """Micro-batches that went backward."""
    ok: bool = False
    """Gradients are complete on this rank: the step will be committed at the end of the loop body."""
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    loss: float = 0.0
    """Mean loss over the global batch."""

    @property
    def looks_on(self) -> bool:
        """Whether this rank computes nothing of it, and gets the gradients of the others."""
        return self.share[0] == self.share[1]

    @property
    def complete(self) -> bool:
        """Whether all micro-batches have gone backward."""
        return self.done == len(self.parts)
