"""Getting one's state in portions, and keeping up to date what has come (:mod:`elastrain.elastic.state.portions`)."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic.comm import channel, digest
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import transfer
from elastrain.elastic.state.capture import Stateful, raw_bytes
from elastrain.elastic.state.portions import ASK, CLOSING, END, INDEX_BYTES, Portion, alike, cut, optimizers, samples
from elastrain.elastic.state.staging import Stage, apart
from elastrain.elastic.state.transfer import compare, encode, receive_small, share


class NotKept(RuntimeError):
    """Something beside the optimizers changes large tensors here: the state has to be given whole."""


class Taking:
    """This rank's state on its way here. Its large tensors are written while a loop body may read them."""

    def __init__(self, mine: Any, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Connect and receive the opening; ``mine`` is this rank's tree. Raises ``GenerationBroken``."""
        self._communicator, self._sources = communicator, sources
        self._place = receivers.index(communicator.rank)
        with communicator.guard():
            self._connections = {r: communicator.connect(r, channel.Purpose.STATE) for r in sources}
            home = {"state": mine, "samples": []}
            tree = receive_small(home, communicator, sources[0], self._connections[sources[0]])
        self.opening: Any = tree["state"]
        """The state, with large tensors that have no content yet: to be loaded before :meth:`begin`."""
        self._hooks: list[Any] = []
        self._threads: list[threading.Thread] = []

    def begin(self, tracked: Mapping[str, Stateful], capture: Callable[[], Any]) -> None:
        """From now on portions arrive in the tensors of what is tracked, and optimizers leave alone what has not come.

        ``capture`` returns the tree of this rank's state. Raises ``GenerationBroken`` if it cannot be cut.
        """
        portions = cut(tracked)
        if portions is None:
            self._communicator.fail("the state of this rank cannot be cut into portions, but its peers' can")
        self._portions: list[Portion] = portions
        self._capture = capture
        self._absent = {p for o in optimizers(tracked) for group in o.param_groups for p in group["params"]}
        for optimizer in optimizers(tracked):
            hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
            self._hooks.append(optimizer.register_step_pre_hook(lambda o, *_, h=hidden: self._hide(o, h)))
            self._hooks.append(optimizer.register_step_post_hook(lambda *_, h=hidden: _show(h)))
        givers = share(len(portions), self._sources, self._place)
        self._left = {source: givers.count(source) for source in self._sources}
        self._asked = False
        self._turns: dict[int, queue.SimpleQueue[_Arrived | None]] = {s: queue.SimpleQueue() for s in self._sources}
        for source in self._sources:
            thread = threading.Thread(target=self._receive, args=(source,), name="elastrain-taking")
            self._threads.append(thread)
            thread.start()

    def step(self) -> Any | None:
        """Wait for what the givers send in this step, before the optimizer's: returns the closing, with which the state
        is complete once it is loaded, or None. Raises ``GenerationBroken``.
        """
        closing = None
        for source in self._sources:
            if not self._left[source] and source != self._sources[0]:
                continue
            arrived = self._turns[source].get()
            if arrived is None:
                cause = self._communicator.broken or f"rank {source} has stopped to give its state"
                raise GenerationBroken(self._communicator.generation, cause)
            self._left[source] -= len(arrived.portions)
            for index in arrived.portions:
                parameter = self._portions[index].parameter
                if parameter is not None:
                    self._absent.discard(parameter)
            closing = closing or arrived.closing
        if closing is not None:
            self.end()
            return self._checked(closing)
        if not any(self._left.values()) and not self._asked:
            self._asked = True
            with self._communicator.guard():
                self._connections[self._sources[0]].sendall(ASK)
        return None

    def end(self) -> None:
        """Optimizers are free again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for thread in self._threads:
            thread.join()

    def _checked(self, closing: Any) -> Any:
        if not alike(samples(self._portions), closing["samples"]):
            raise NotKept
        return closing["state"]

    def _hide(self, optimizer: torch.optim.Optimizer, hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p in self._absent and p.grad is not None:
                hidden.append((p, p.grad))
                p.grad = None

    # -- a thread for each source ------------------------------------------------------------------------------------
    def _receive(self, source: int) -> None:
        connection, turns = self._connections[source], self._turns[source]
        left, closes = self._left[source], source == self._sources[0]
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
                    sums += encode(digest.of_bytes(data))
                    stage.finish(data, home)
            compare(sums, self._communicator, source, connection)
            portions.append(index)
        return _Arrived(portions, closing)

    def _receive_closing(self, source: int, connection: socket.socket) -> Any:
        # What is small gets memory of its own until it is loaded: a loop body is at work on this rank's.
        mine = {"state": _pytree.tree_map(lambda x: x if _is_large(x) else None, self._capture()), "samples": []}
        return receive_small(mine, self._communicator, source, connection)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """What a source has given in a step."""

    portions: list[int]
    closing: Any | None


def _show(hidden: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
    for parameter, gradient in hidden:
        parameter.grad = gradient
    hidden.clear()


def _is_large(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.nbytes >= transfer.SMALL_BYTES
