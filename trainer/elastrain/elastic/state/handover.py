"""This rank's state on its way to joiners, or its peers' state on its way here, beside the steps.

In one round, or in several (:mod:`elastrain.elastic.state.portions`). For the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import portions
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import NotKept, StateReceiver
from elastrain.elastic.state.sender import StateSender

log = structlog.get_logger(__name__)


class Handover:
    """At most one transfer at a time, in the generation in force."""

    def __init__(self, tracked: Mapping[str, Stateful], capture: Callable[..., Any], load: Callable[..., None]) -> None:
        """``capture()`` returns the tree of this rank's state, ``capture(gradients=False)`` the same without those that
        are kept; ``load(tree, missing)`` replaces the state by such a tree, as of :meth:`RankState.load`."""
        self.partial_state = ""
        """Why this rank's memory holds the state of no step; empty if it holds that of one, or never held any."""
        self._tracked, self._capture, self._load = tracked, capture, load
        self._without_gradients = partial(capture, gradients=False)
        """For several rounds: a rank that receives its state has the gradients of the steps meanwhile itself."""
        self._sender: StateSender | None = None
        self._receiver: StateReceiver | None = None
        """In several rounds, as long as the state is not complete."""
        self._taken = False
        """Whether the round of this step has been received before its loop body."""
        self._keeps_up = True
        self._rounds = 0
        """That have arrived."""

    @property
    def receiving(self) -> bool:
        """Whether this rank's state is not complete yet."""
        return self._receiver is not None

    def permits_rounds(self, *, holds: bool) -> bool:
        """Whether the state can travel in several rounds, as far as this rank can tell.

        Of a rank that ``holds`` it: it is large enough. Of a receiver: it can keep portions up to date.
        """
        if not portions.may_take_several_rounds(self._tracked):
            return False
        if not holds:
            return self._keeps_up
        parts = portions.cut(self._tracked)
        return parts is not None and sum(p.nbytes for p in parts) >= portions.MIN_BYTES

    def send(self, communicator: Communicator, to: Transfer, *, in_rounds: bool) -> None:
        """Begin to send this rank's part of the state, as one of the sources of ``to``. Raises ``GenerationBroken``."""
        with communicator.guard(sends=True):
            parts = portions.cut(self._tracked) if in_rounds else None
            assert parts is not None or not in_rounds, "permits_rounds() was true"
            self._sender = StateSender(self._capture(gradients=not in_rounds), communicator, to, parts)

    def receive(self, communicator: Communicator, by: Transfer, *, in_rounds: bool, keep: bool) -> None:
        """Receive the state, or begin to. ``keep``: this rank's own state must stay until the other is complete.

        Raises ``GenerationBroken``.
        """
        mine = None if keep else self._without_gradients()
        self.partial_state = "" if keep else "the last workers that held it were lost while this one was receiving it"
        receiver = StateReceiver(mine, communicator, by)
        if not in_rounds:
            self._load(receiver.complete())
            self.partial_state = ""
            return
        self._rounds, self._receiver = 0, receiver
        self._load(receiver.opening, portions.is_large)
        parts = portions.cut(self._tracked)
        if parts is None:
            communicator.fail("the state of this rank cannot be cut into portions, but its peers' can")
        receiver.begin(parts, self._tracked, self._without_gradients)

    def resume(self, step_seconds: float | None) -> None:
        """A step begins. ``step_seconds``: the time that it is expected to take."""
        if self._sender is not None:
            self._sender.resume(self._without_gradients, step_seconds)

    def before_body(self, communicator: Communicator) -> None:
        """A loop body follows, after this rank has begun its sums. If the state may be completed in this step, wait.

        What the loop body sets before its backward (a learning rate, say) would else be lost by the closing.
        """
        self._taken = self._receiver is not None and self._receiver.requested
        if self._taken:
            self._receive_round(communicator)

    def before_update(self, communicator: Communicator) -> float | None:
        """The gradients are there. Return when the optimizers may change this rank's state.

        The part of the state that this rank has is then equal to the other ranks'. Returns the monotonic time at which
        the last byte of this step was sent, None if none was. A failure leaves the communicator broken.
        """
        if not self._taken:
            self._receive_round(communicator)
        if self._sender is None:
            return None
        ended_at = self._sender.pause()
        if self._sender.over:
            self._sender = None
        return ended_at

    def finish(self, communicator: Communicator) -> None:
        """There is no further step: send, and receive, the rest."""
        while self._receiver is not None and communicator.broken is None:
            self._receive_round(communicator)
        if self._sender is not None:
            self._sender.finish(self._without_gradients)
            self._sender = None

    def end(self) -> None:
        """Give the transfer up, after the communicator was aborted."""
        for side in (self._sender, self._receiver):
            if side is not None:
                side.end()
        self._sender = self._receiver = None

    def _receive_round(self, communicator: Communicator) -> None:
        if self._receiver is None:
            return
        self._rounds += 1
        try:
            closing = self._receiver.receive_round()
        except GenerationBroken:
            return  # the caller sees it from the communicator
        except NotKept:
            self._keeps_up = False
            communicator.abort("code other than the optimizers changes the model: its state has to be sent whole")
            return
        if closing is not None:
            self._load(closing)
            self._receiver, self.partial_state = None, ""
            log.info("state is complete", generation=communicator.generation, steps=self._rounds)
