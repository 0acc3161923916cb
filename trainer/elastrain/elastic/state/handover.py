"""This rank's state on its way to joiners, or its peers' to this one, beside the steps.

Whole, in one step (:mod:`elastrain.elastic.state.transfer`), or in portions, over several
(:mod:`elastrain.elastic.state.portions`). Training thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import portions, transfer
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.receiver import NotKept, Taking
from elastrain.elastic.state.sender import STEP_SHARE, Giving
from elastrain.elastic.state.transfer import Gift

log = structlog.get_logger(__name__)


class Handover:
    """At most one at a time, in the generation in force."""

    def __init__(
        self, tracked: Mapping[str, Stateful], capture: Callable[[], Any], load: Callable[[Any], None]
    ) -> None:
        """``capture`` returns the tree of this rank's state, ``load`` makes such a tree its state."""
        self.torn = False
        """This rank's memory holds a part of a state that never came as a whole."""
        self._tracked, self._capture, self._load = tracked, capture, load
        self._giving: Gift | Giving | None = None
        self._taking: Taking | None = None
        self._keeps_up = True
        self._steps = 0  # that portions have come in

    @property
    def takes(self) -> bool:
        """Whether this rank's state is not complete yet."""
        return self._taking is not None

    def would_give_in_portions(self) -> bool:
        """Whether this rank's state can travel so, and is worth it."""
        if not portions.may_travel_in_portions(self._tracked):
            return False
        parts = portions.cut(self._tracked)
        return parts is not None and sum(p.nbytes for p in parts) >= portions.MIN_BYTES

    def would_take_in_portions(self) -> bool:
        return self._keeps_up and portions.may_travel_in_portions(self._tracked)

    def give(
        self, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int], *, in_portions: bool
    ) -> None:
        """Begin to give this rank's share, as one of ``sources``."""
        tree = self._capture()
        if not in_portions:
            self._giving = Gift(tree, communicator, sources, receivers)
            return
        parts = portions.cut(self._tracked)
        assert parts is not None, "it was asked for"
        self._giving = Giving(tree, parts, communicator, sources, receivers)

    def take(
        self,
        communicator: Communicator,
        sources: Sequence[int],
        receivers: Sequence[int],
        *,
        in_portions: bool,
        keep: bool,
    ) -> None:
        """Get the state, or begin to. ``keep``: this rank's own is still worth something until then.

        Raises ``GenerationBroken``.
        """
        mine = None if keep else self._capture()
        self.torn = not keep
        if not in_portions:
            self._load(transfer.receive(mine, communicator, sources, receivers))
            self.torn = False
            return
        self._steps = 0
        self._taking = Taking(mine, communicator, sources, receivers)
        self._load(self._taking.opening)
        self._taking.begin(self._tracked, self._capture)

    def resume(self, step_seconds: float | None) -> None:
        """A step begins that takes about so long."""
        if isinstance(self._giving, Giving):
            until = float("inf") if step_seconds is None else time.monotonic() + STEP_SHARE * step_seconds
            self._giving.resume(self._capture, until)

    def before_update(self, communicator: Communicator) -> float | None:
        """The gradients are there: return when the optimizers may change this rank's state, which is then the same as
        everybody's as far as this rank has got it.

        Returns when the last byte of this step was sent; None if none was. A failure leaves the communicator broken.
        """
        if self._taking is not None:
            self._take_step(communicator)
        if self._giving is None:
            return None
        ended_at = self._giving.pause()
        if self._giving.over:
            self._giving = None
        return ended_at

    def finish(self, communicator: Communicator) -> None:
        """There is no further step: give, and get, all that is left."""
        while self._taking is not None and communicator.broken is None:
            self._take_step(communicator)
        if self._giving is not None:
            self._giving.finish(self._capture)
            self._giving = None

    def end(self) -> None:
        """The communicator was aborted."""
        if self._giving is not None:
            self._giving.end()
        if self._taking is not None:
            self._taking.end()
        self._giving = self._taking = None

    def _take_step(self, communicator: Communicator) -> None:
        assert self._taking is not None
        self._steps += 1
        try:
            closing = self._taking.step()
        except GenerationBroken:
            return  # the caller sees it from the communicator
        except NotKept:
            self._keeps_up = False
            communicator.abort("something beside the optimizers changes the model: its state has to be given whole")
            return
        if closing is not None:
            self._load(closing)
            self._taking, self.torn = None, False
            log.info("state is complete", generation=communicator.generation, steps=self._steps)
