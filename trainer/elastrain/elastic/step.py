"""The step that is being computed."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.data.order import Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed


@dataclass(slots=True)
class Step:
    """One execution of one step on this rank: its micro-batches, one after the other."""

    number: int
    place: Place
    """This rank's place in the generation that computes the step."""
    share: Share
    """The share of the global batch that this rank computes."""
    parts: tuple[Slice, ...]
    """The micro-batches of this rank."""
    warm_up: bool = False
    """The step is never committed."""
    begun: int = 0
    """Micro-batches whose loop body has begun."""
    done: int = 0
    """Micro-batches that have run backward."""
    ok: bool = False
    """Gradients are complete on this rank: the step will be committed at the end of the loop body."""
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    learning: bool = False
    """Some ranks will still be receiving their state in the next step."""
    loss: float = 0.0
    """Mean loss over the global batch."""
    stops: bool = False
    """Training ends with this step: a rank has asked for it."""

    def accept(self, summed: Summed, generation: int) -> None:
        """The gradients are complete; ``summed``: the control vector of the ranks of ``generation``."""
        self.ok = True
        self.agreed = summed.agreed(generation)
        self.loss = summed.sums[control.LOSS]
        self.learning = summed.sums[control.LEARNING] > 0
        self.stops = summed.sums[control.STOP] > 0

    @property
    def complete(self) -> bool:
        """Whether all micro-batches have run backward."""
        return self.done == len(self.parts)
