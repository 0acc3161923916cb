"""The step that is being computed."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.data.order import Order, Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed


@dataclass(slots=True)
class Step:
    """One execution of one step on this rank: its micro-batches, one after the other."""

    number: int
    parts: tuple[Slice, ...]
    """The micro-batches of this rank."""
    place: Place
    """Where it is computed."""
    share: Share
    """What counts of it as computed by this rank."""
    cut: Share
    """Where in the global batch its samples come from: its share; of one who looks on, what would be its share."""
    warm_up: bool = False
    begun: int = 0
    """Micro-batches whose loop body has begun."""
    done: int = 0
    """Micro-batches that went backward."""
    ok: bool = False
    """Gradients are complete on this rank: the step will be committed at the end of the loop body."""
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    looking: bool = False
    """Some ranks will be getting their state in the next step, too."""
    loss: float = 0.0
    """Mean loss over the global batch."""
    stops: bool = False
    """Training ends with this step: a rank has asked for it, and all know."""

    @classmethod
    def of(cls, order: Order, number: int, place: Place, share: Share) -> Step:
        """Step ``number`` of data in ``order``, as the rank at ``place`` computes its ``share`` of it. Pure."""
        if not share.looks_on:
            return cls(number, order.micro_slices(number, *share), place, share, share)
        # The loop body must run on something: on samples of which none counts.
        stand_in = order.micro_slices(number, *place.share)[0].stand_in()
        return cls(number, (stand_in,), place, share, place.share)

    def take(self, heard: Summed, generation: int) -> None:
        """The gradients are complete: what the ranks of ``generation`` have said applies."""
        self.ok = True
        self.agreed = heard.agreed(generation)
        self.loss = heard.sums[control.LOSS]
        self.looking = heard.sums[control.LOOKING] > 0
        self.stops = heard.sums[control.STOP] > 0

    @property
    def looks_on(self) -> bool:
        """Whether this rank computes nothing of it, and gets the gradients of the others."""
        return self.share.looks_on

    @property
    def complete(self) -> bool:
        """Whether all micro-batches have gone backward."""
        return self.done == len(self.parts)
