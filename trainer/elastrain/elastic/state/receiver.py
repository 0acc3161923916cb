"""Receives this rank's state in portions (:mod:`elastrain.elastic.state.portions`), and keeps them up to date."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import digest, transfer
from elastrain.elastic.state.capture import Stateful, raw_bytes
from elastrain.elastic.state.portions import (
    ASK,
    CLOSING,
    END,
    INDEX_BYTES,
    Portion,
    alike,
    cut,
    optimizers,
    samples,
    slices_of,
)
from elastrain.elastic.state.slices import Transfer
from elastrain.elastic.state.staging import Stage, apart
from elastrain.elastic.state.transfer import as_bytes, compare, receive_small
from elastrain.elastic.torch_private import pytree


class NotKept(RuntimeError):
    """Code other than the optimizers changes large tensors on this rank: the state has to be sent whole."""


class StateReceiver:
    """Receives this rank's state over several steps. Its large tensors are written while a loop body may read them."""

    def __init__(self, mine: Any, communicator: Communicator, transfer: Transfer) -> None:
        """Connect to the sources and receive the opening. ``mine``: this rank's tree. Raises ``GenerationBroken``."""
        self._communicator, self._transfer = communicator, transfer
        first = transfer.sources[0]
        with communicator.guard():
            self._connections = {r: communicator.connect(r, channel.Purpose.STATE) for r in transfer.sources}
            home = {"state": mine, "samples": []}
            tree = receive_small(home, communicator, first, self._connections[first])
        self.opening: Any = tree["state"]
        """The state with large tensors that have no content yet, to be loaded before :meth:`begin`."""
        self._hooks: list[Any] = []
        self._threads: list[threading.Thread] = []

    def begin(self, tracked: Mapping[str, Stateful], capture: Callable[[], Any]) -> None:
        """From now on portions arrive in the tensors of ``tracked``; optimizers skip the parameters still missing.

        ``capture`` returns the tree of this rank's state. Raises ``GenerationBroken`` if it cannot be cut.
        """
        portions = cut(tracked)
        if portions is None:
            self._communicator.fail("the state of this rank cannot be cut into portions, but its peers' can")
        self._portions: list[Portion] = portions
        self._capture = capture
        self._missing = {p for o in optimizers(tracked) for group in o.param_groups for p in group["params"]}
        for optimizer in optimizers(tracked):
            hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
            self._hooks.append(optimizer.register_step_pre_hook(lambda o, *_, h=hidden: self._hide(o, h)))
            self._hooks.append(optimizer.register_step_post_hook(lambda *_, h=hidden: _show(h)))
        senders = self._transfer.senders(slices_of(portions), self._communicator.rank)
        sources = self._transfer.sources
        self._left = {source: senders.count(source) for source in sources}
        self.asked = False
        """Whether all portions have arrived, and the closing follows in the next step or the one after it."""
        self._turns: dict[int, queue.SimpleQueue[_Arrived | None]] = {s: queue.SimpleQueue() for s in sources}
        for source in sources:
            thread = threading.Thread(target=self._receive, args=(source,), name="elastrain-receive-state")
            self._threads.append(thread)
            thread.start()

    def step(self) -> Any | None:
        """Wait for the portions of this step, before the optimizer's step.

        Returns the closing, which completes the state once it is loaded, or None. Raises ``GenerationBroken``, and
        :class:`NotKept`.
        """
        closing = None
        sources = self._transfer.sources
        for source in sources:
            if not self._left[source] and source != sources[0]:
                continue
            arrived = self._turns[source].get()
            if arrived is None:
                cause = self._communicator.broken or f"rank {source} has stopped sending its state"
                raise GenerationBroken(self._communicator.generation, cause)
            self._left[source] -= len(arrived.portions)
            for index in arrived.portions:
                parameter = self._portions[index].parameter
                if parameter is not None:
                    self._missing.discard(parameter)
            closing = closing or arrived.closing
        if closing is not None:
            self.end()
            if not alike(samples(self._portions), closing["samples"]):
                raise NotKept
            return closing["state"]
        if not any(self._left.values()) and not self.asked:
            self.asked = True
            with self._communicator.guard():
                self._connections[sources[0]].sendall(ASK)
        return None

    def end(self) -> None:
        """Stop receiving; optimizers update all parameters again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for thread in self._threads:
            thread.join()

    def _hide(self, optimizer: torch.optim.Optimizer, hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p in self._missing and p.grad is not None:
                hidden.append((p, p.grad))
                p.grad = None

    # -- a thread for each source ------------------------------------------------------------------------------------
    def _receive(self, source: int) -> None:
        connection, turns = self._connections[source], self._turns[source]
        left, closes = self._left[source], source == self._transfer.sources[0]
        stage = Stage(transfer.PIECE_BYTES)
        try:
            first = [portion.tensors[0] for portion in self._portions]
            with contextlib.suppress(GenerationBroken), self._communicator.guard(), apart(first):
                while left or closes:
                    arrived = self._receive_turn(source, connection, stage)
                    left -= len(arrived.portions)
                    closes = closes and arrived.closing is None
                    turns.put(arrived)
        finally:
            turns.put(None)

    def _receive_turn(self, source: int, connection: socket.socket, stage: Stage) -> _Arrived:
        portions, closing = [], None
        while (tag := bytes(channel.receive(connection, bytearray(1)))) != END:
            if tag == CLOSING:
                closing = self._receive_closing(source, connection)
                continue
            index = int.from_bytes(channel.receive(connection, bytearray(INDEX_BYTES)), "big")
            sums = bytearray()
            for tensor in self._portions[index].tensors:
                for home in raw_bytes(tensor).split(transfer.PIECE_BYTES):
                    data = stage.begin(home)
                    channel.receive(connection, data.numpy())
                    sums += as_bytes(digest.of_bytes(data))
                    stage.finish(data, home)
            compare(sums, self._communicator, source, connection)
            portions.append(index)
        return _Arrived(portions, closing)

    def _receive_closing(self, source: int, connection: socket.socket) -> Any:
        # Small tensors get memory of their own until they are loaded: a loop body may use this rank's.
        mine = {"state": pytree.tree_map(lambda x: x if _is_large(x) else None, self._capture()), "samples": []}
        return receive_small(mine, self._communicator, source, connection)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The data of one source in one step."""

    portions: list[int]
    closing: Any | None


def _show(hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
    for parameter, gradient in hidden:
        parameter.grad = gradient
    hidden.clear()


def _is_large(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.nbytes >= transfer.SMALL_BYTES
