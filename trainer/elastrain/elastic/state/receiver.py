"""Receives this rank's state, and keeps up to date what has arrived of it while the rest is on its way."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from elastrain import threads
from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import transfer
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.portions import Portion, Transfer, is_large, optimizers, pieces, samples
from elastrain.elastic.state.transfer import ASK, CLOSING, END, Stage, apart, receive_small, settle
from elastrain.elastic.torch_private import pytree

_Arrived = tuple[list[Portion], dict[str, Any] | None]
"""The data of one source in one round: portions, and the closing: "state", and "samples" of the source's tensors."""


class NotKept(RuntimeError):
    """Code other than the optimizers changes large tensors on this rank: the state has to come in one round."""


class StateReceiver:
    """Receives this rank's state: :meth:`complete` in one round, or over several steps by :meth:`begin` and then
    :meth:`receive_round` in each.

    With several rounds large tensors are written while a loop body may read them.
    """

    def __init__(self, mine: Any, communicator: Communicator, transfer: Transfer) -> None:
        """Connect to the sources and receive the opening.

        ``mine``: a tree whose tensors may be overwritten, so that most of the state arrives in place; None if this rank
        must keep its own state until it has the other. Raises ``GenerationBroken``.
        """
        self._communicator, self._transfer = communicator, transfer
        first = transfer.sources[0]
        with communicator.guard():
            self._connections = {r: communicator.connect(r, channel.Purpose.STATE) for r in transfer.sources}
            self.opening: Any = receive_small(mine, communicator, first, self._connections[first])
        """The state with large tensors that have no content yet."""
        self.requested = False
        """Whether all portions have arrived, and the closing follows in the next step or the one after it."""
        self._updates: _Updates | None = None
        self._capture: Callable[[], Any] | None = None
        self._threads: list[threads.Thread] = []

    def complete(self) -> Any:
        """The state, in one round. Raises ``GenerationBroken``, also for a portion that arrived damaged."""
        self._start(pieces(self.opening))
        try:
            self.receive_round()
        finally:
            self.end()
        return self.opening

    def begin(self, portions: Sequence[Portion], tracked: Mapping[str, Stateful], capture: Callable[[], Any]) -> None:
        """From now on ``portions`` of ``tracked`` arrive, into which :attr:`opening` was loaded.

        Optimizers skip the parameters that are still missing. ``capture`` returns the tree of this rank's state.
        """
        self._updates, self._capture = _Updates(tracked), capture
        self._start(portions)

    def receive_round(self) -> Any | None:
        """Wait for the portions of this round, before the optimizer's step.

        Returns the closing, which completes the state once it is loaded, or None. Raises ``GenerationBroken``, and
        :class:`NotKept`.
        """
        closing, first = None, self._transfer.sources[0]
        for source in self._transfer.sources:
            if not self._left[source] and (source != first or self._capture is None):
                continue
            arrived = self._rounds[source].get()
            if arrived is None:
                cause = self._communicator.broken or f"rank {source} has stopped sending its state"
                raise GenerationBroken(self._communicator.generation, cause)
            came, closes = arrived
            self._left[source] -= len(came)
            if self._updates is not None:
                self._updates.missing.difference_update(portion.parameter for portion in came)
            closing = closing or closes
        if closing is not None:
            self.end()
            state, theirs = closing["state"], closing["samples"]
            if samples(self._portions) != theirs:
                raise NotKept
            return state
        if self._capture is not None and not any(self._left.values()) and not self.requested:
            self.requested = True
            with self._communicator.guard():
                self._connections[first].sendall(ASK)
        return None

    def end(self) -> None:
        """Stop receiving; optimizers update all parameters again."""
        if self._updates is not None:
            self._updates.end()
        for thread in self._threads:
            thread.join()

    def _start(self, portions: Sequence[Portion]) -> None:
        self._portions, rank, sources = portions, self._communicator.rank, self._transfer.sources
        settle([tensor for portion in portions for tensor in portion.tensors])
        coming = {s: [portions[n] for n in self._transfer.sent_by(s, rank, len(portions))] for s in sources}
        self._left = {source: len(of_source) for source, of_source in coming.items()}
        self._rounds: dict[int, queue.SimpleQueue[_Arrived | None]] = {s: queue.SimpleQueue() for s in sources}
        self._threads = [
            threads.start(self._receive, source, coming[source], name="elastrain-receive-state", daemon=False)
            for source in sources
        ]

    # -- a thread for each source ------------------------------------------------------------------------------------
    def _receive(self, source: int, left: list[Portion]) -> None:
        connection, rounds, stage = self._connections[source], self._rounds[source], Stage(transfer.PIECE_BYTES)
        closes = self._capture is not None and source == self._transfer.sources[0]
        homes = [tensor for portion in left for tensor in portion.tensors]
        try:  # an error of any kind has ended the generation, or this rank, when the guard is left
            with contextlib.suppress(BaseException), self._communicator.guard(), apart(homes):
                while left or closes:
                    arrived = self._round_from(source, connection, left, stage)
                    closes = closes and arrived[1] is None
                    rounds.put(arrived)
        finally:
            rounds.put(None)

    def _round_from(self, source: int, connection: socket.socket, left: list[Portion], stage: Stage) -> _Arrived:
        portions, closing = [], None
        while (tag := bytes(channel.receive(connection, bytearray(1)))) != END:
            if tag == CLOSING:
                closing = self._receive_closing(source, connection)
                continue
            portions.append(left.pop(0))
            transfer.receive_tensors(portions[-1].tensors, self._communicator, source, connection, stage)
        return portions, closing

    def _receive_closing(self, source: int, connection: socket.socket) -> dict[str, Any]:
        # Small tensors get memory of their own until they are loaded: a loop body may use this rank's.
        assert self._capture is not None
        large = pytree.tree_map(lambda x: x if is_large(x) else None, self._capture())
        closing: dict[str, Any] = receive_small({"state": large}, self._communicator, source, connection)
        return closing


class _Updates:
    """Optimizers of a learner, which skip the parameters that are still missing."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        self.missing: set[torch.nn.Parameter | None] = set()
        self._hooks: list[Any] = []
        for optimizer in optimizers(tracked):
            self.missing |= {p for group in optimizer.param_groups for p in group["params"]}
            hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
            self._hooks.append(optimizer.register_step_pre_hook(lambda o, *_, h=hidden: self._hide(o, h)))
            self._hooks.append(optimizer.register_step_post_hook(lambda *_, h=hidden: _show(h)))

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hide(self, optimizer: torch.optim.Optimizer, hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p in self.missing and p.grad is not None:
                hidden.append((p, p.grad))
                p.grad = None


def _show(hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
    for parameter, gradient in hidden:
        parameter.grad = gradient
    hidden.clear()
