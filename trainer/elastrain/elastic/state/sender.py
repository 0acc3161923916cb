"""Sends this rank's state in portions (:mod:`elastrain.elastic.state.portions`), as far as the steps allow."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import digest, transfer
from elastrain.elastic.state.capture import raw_bytes
from elastrain.elastic.state.portions import (
    ASK,
    CLOSING,
    END,
    INDEX_BYTES,
    PORTION,
    Portion,
    samples,
    slices_of,
)
from elastrain.elastic.state.slices import Transfer
from elastrain.elastic.state.staging import Stage, apart, settle
from elastrain.elastic.state.transfer import SmallState, as_bytes

STEP_SHARE = 0.6
"""A portion is begun only if, at the rate so far, it will have left within this share of a step's time."""


class StateSender:
    """Sends this rank's part of the state to all receivers, in threads of its own, as far as steps allow."""

    def __init__(self, tree: Any, portions: Sequence[Portion], communicator: Communicator, transfer: Transfer) -> None:
        """Every source of ``transfer`` makes one, of an equal ``tree`` and its ``portions``; each receiver makes a
        :class:`elastrain.elastic.state.receiver.StateReceiver`.

        The training thread calls the methods. The end of the communicator bounds all of them.
        """
        self._portions, self._communicator = portions, communicator
        self._first = communicator.rank == transfer.sources[0]
        opening = SmallState({"state": tree, "samples": []}) if self._first else None
        slices = slices_of(portions)
        self._lanes = [
            _Lane(portions, communicator, opening, transfer.senders(slices, receiver))
            for receiver in transfer.receivers
        ]
        self._receivers = transfer.receivers
        self._thread = threading.Thread(target=self._run, name="elastrain-send-state")
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the state has arrived, or cannot arrive."""
        return not self._thread.is_alive()

    def resume(self, tree: Callable[[], Any], until: float) -> None:
        """A step begins, which is expected to compute until ``until`` (monotonic seconds).

        The large tensors do not change before :meth:`pause`. ``tree()``: the present state.
        """
        settle([portion.tensors[0] for portion in self._portions])
        asked = [lane for lane in self._lanes if lane.is_asked_to_close()]
        closing = self._closing(tree) if asked else None
        for lane in self._lanes:
            lane.begin(_Turn(until, closing if lane in asked else None))

    def pause(self) -> float:
        """Return when no thread reads the large tensors, so that the optimizer may change them.

        Returns the monotonic time of that moment.
        """
        for lane in self._lanes:
            lane.mute()
        return time.monotonic()

    def finish(self, tree: Callable[[], Any]) -> None:
        """Send the rest: there is no further step."""
        closing = self._closing(tree) if self._first else None
        for lane in self._lanes:
            lane.begin(_Turn(float("inf"), closing, last=closing is not None or not self._first))
        self._thread.join()

    def end(self) -> None:
        """Return when nothing is sent any more, after the communicator was aborted."""
        for lane in self._lanes:
            lane.begin(None)
        self._thread.join()

    def _closing(self, tree: Callable[[], Any]) -> SmallState | None:
        """None: it cannot be sent, and the generation is broken."""
        with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True):
            return SmallState({"state": tree(), "samples": samples(self._portions)})
        return None

    def _run(self) -> None:
        with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True):
            connections = self._communicator.accept(self._receivers, channel.Purpose.STATE)
            threads = [
                threading.Thread(target=lane.run, args=(connections[receiver],), name="elastrain-lane")
                for lane, receiver in zip(self._lanes, self._receivers, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


class _Turn:
    """The time of one step for sending, on one lane."""

    def __init__(self, until: float, closing: SmallState | None, *, last: bool = False) -> None:
        self.until, self.closing, self.last = until, closing, last
        self.begun = threading.Event()
        """The first portion of the turn is being read, or never will be."""
        self.muted = False
        self.sending = threading.Lock()
        """Held while a portion is read."""


class _Lane:
    """The connection to one receiver, with one thread."""

    def __init__(
        self, portions: Sequence[Portion], communicator: Communicator, opening: SmallState | None, senders: list[int]
    ) -> None:
        self._portions, self._communicator, self._opening = portions, communicator, opening
        self._left = [i for i, sender in enumerate(senders) if sender == communicator.rank]
        self._closes = opening is not None
        self._turns: queue.SimpleQueue[_Turn | None] = queue.SimpleQueue()
        self._turn: _Turn | None = None
        self._connection: socket.socket | None = None
        self._ended = False
        self._stage = Stage(transfer.PIECE_BYTES)
        self._sent, self._took = 0, 0.0

    # -- the training thread -----------------------------------------------------------------------------------------
    def is_asked_to_close(self) -> bool:
        if self._connection is None or self._left or not self._closes:
            return False
        try:
            return self._connection.recv(1, socket.MSG_DONTWAIT) == ASK
        except OSError:  # not yet, or the receiver is gone, which the step's sums will show
            return False

    def begin(self, turn: _Turn | None) -> None:
        self._turn = turn
        self._turns.put(turn)
        if turn is not None and self._ended:
            turn.begun.set()

    def mute(self) -> None:
        """Return when no portion is being read, and none will be in this turn.

        One portion has been read, if there was one: otherwise short steps would never let a lane have its turn.
        """
        if (turn := self._turn) is None:
            return
        if self._connection is not None:
            turn.begun.wait()
        turn.muted = True
        with turn.sending:
            pass

    # -- its thread --------------------------------------------------------------------------------------------------
    def run(self, connection: socket.socket) -> None:
        try:
            first = [portion.tensors[0] for portion in self._portions]
            with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True), apart(first):
                if self._opening is not None:
                    self._opening.send(connection)
                    self._opening = None
                while (self._left or self._closes) and (turn := self._turns.get()) is not None:
                    self._connection = connection
                    self._take(turn, connection)
        finally:
            self._ended = True
            if (last := self._turn) is not None:  # once: the training thread may be about to end it
                last.begun.set()

    def _take(self, turn: _Turn, connection: socket.socket) -> None:
        if turn.closing is not None and not turn.last:
            turn.begun.set()
            self._close(turn.closing, connection)
            return
        begun = len(self._left)
        while self._left:
            with turn.sending:
                turn.begun.set()
                if turn.muted or (len(self._left) < begun and not self._fits(turn)):
                    break
                self._send(self._left.pop(0), connection)
        turn.begun.set()
        connection.sendall(END)
        if turn.last and self._closes:
            assert turn.closing is not None
            channel.receive(connection, bytearray(1))
            self._close(turn.closing, connection)

    def _fits(self, turn: _Turn) -> bool:
        return time.monotonic() + self._portions[self._left[0]].nbytes * self._took / self._sent <= turn.until

    def _send(self, index: int, connection: socket.socket) -> None:
        began = time.monotonic()
        connection.sendall(PORTION + index.to_bytes(INDEX_BYTES, "big"))
        sums = []
        for tensor in self._portions[index].tensors:
            for piece in raw_bytes(tensor).split(transfer.PIECE_BYTES):
                data = self._stage.to_host(piece)
                connection.sendall(data.numpy())
                sums.append(digest.of_bytes(data))
        connection.sendall(b"".join(map(as_bytes, sums)))
        self._sent += self._portions[index].nbytes
        self._took += time.monotonic() - began

    def _close(self, closing: SmallState, connection: socket.socket) -> None:
        connection.sendall(CLOSING)
        closing.send(connection)
        connection.sendall(END)
        self._closes = False
