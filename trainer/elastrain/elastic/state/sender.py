"""Sends this rank's part of the state: in one round, or in several as far as the steps allow.

On a connection each round is some portions or the closing, followed by ``END``. A sender is done after its last
portion; the first one then waits for ``ASK`` and sends the closing, if there are several rounds.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from elastrain import threads
from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state import transfer
from elastrain.elastic.state.portions import Portion, Transfer, pieces, samples
from elastrain.elastic.state.transfer import ASK, CLOSING, END, PORTION, SmallState, Stage, apart, settle

STEP_SHARE = 0.6
"""A portion is begun only if, at the rate so far, it will have left within this share of a step's time."""


class StateSender:
    """Sends this rank's part of the state to all receivers, with a thread for each."""

    def __init__(
        self, tree: Any, communicator: Communicator, transfer: Transfer, portions: Sequence[Portion] | None = None
    ) -> None:
        """Every source of ``transfer`` makes one, of an equal ``tree``; each receiver makes a
        :class:`elastrain.elastic.state.receiver.StateReceiver`.

        ``portions``: for several rounds, as of :func:`elastrain.elastic.state.portions.cut`; None: all is sent in one
        round, which begins now. Large tensors must not change until :meth:`pause` has returned. All else is sent as it
        is now. The training thread calls the methods. The end of the communicator bounds all of them.
        """
        self._communicator, self._receivers = communicator, transfer.receivers
        self._one_round, self._first = portions is None, communicator.rank == transfer.sources[0]
        opening = SmallState(tree) if self._first else None
        self._portions = pieces(tree) if portions is None else portions
        self._lanes = [
            _Lane(
                communicator,
                opening,
                [self._portions[n] for n in transfer.sent_by(communicator.rank, receiver, len(self._portions))],
                closes=self._first and not self._one_round,
            )
            for receiver in transfer.receivers
        ]
        self._ended_at: float | None = None
        if self._one_round:
            self._begin_last()
        self._thread = threads.start(self._run, name="elastrain-send-state", daemon=False)

    @property
    def over(self) -> bool:
        """Whether the state has arrived, or cannot arrive."""
        return not self._thread.is_alive()

    def resume(self, tree: Callable[[], Any], step_seconds: float | None) -> None:
        """A step begins, which is expected to take ``step_seconds``; None: not known. ``tree()``: the present state."""
        if self._one_round:
            return
        self._settle()
        until = math.inf if step_seconds is None else time.monotonic() + STEP_SHARE * step_seconds
        closes_now = [lane for lane in self._lanes if lane.must_close()]
        closing = self._closing(tree) if closes_now else None
        for lane in self._lanes:
            lane.begin(_Round(until, closing if lane in closes_now else None))

    def pause(self) -> float:
        """Return when no thread reads the large tensors, so that the optimizer may change them: if there is one round,
        when it has ended or cannot end.

        Returns the monotonic time of that moment.
        """
        if self._one_round:
            self._thread.join()
        for lane in self._lanes:
            lane.mute()
        return self._ended_at or time.monotonic()

    def finish(self, tree: Callable[[], Any]) -> None:
        """Send the rest: there is no further step."""
        if not self._one_round:
            self._begin_last(self._closing(tree) if self._first else None)
        self._thread.join()

    def end(self) -> None:
        """Return when nothing is sent any more, after the communicator was aborted."""
        for lane in self._lanes:
            lane.begin(None)
        self._thread.join()

    def _begin_last(self, closing: SmallState | None = None) -> None:
        self._settle()
        for lane in self._lanes:
            lane.begin(_Round(math.inf, closing, last=True))

    def _settle(self) -> None:
        settle([tensor for portion in self._portions for tensor in portion.tensors])

    def _closing(self, tree: Callable[[], Any]) -> SmallState | None:
        """None: it cannot be sent, and the generation is broken."""
        with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True):
            return SmallState({"state": tree(), "samples": samples(self._portions)})
        return None

    def _run(self) -> None:
        with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True):
            connections = self._communicator.accept(self._receivers, channel.Purpose.STATE)
            running = [
                threads.start(lane.run, connections[receiver], name="elastrain-lane", daemon=False)
                for lane, receiver in zip(self._lanes, self._receivers, strict=True)
            ]
            for thread in running:
                thread.join()
        self._ended_at = time.monotonic()


class _Round:
    """The time of one step for sending, on one lane."""

    def __init__(self, until: float, closing: SmallState | None, *, last: bool = False) -> None:
        self.until, self.closing, self.last = until, closing, last
        self.begun = threading.Event()
        """The first portion of the round is being read, or never will be."""
        self.muted = False
        self.sending = threading.Lock()
        """Held while a portion is read."""


class _Lane:
    """The connection to one receiver, with one thread."""

    def __init__(
        self, communicator: Communicator, opening: SmallState | None, portions: list[Portion], *, closes: bool
    ) -> None:
        self._communicator, self._opening = communicator, opening
        self._left, self._closes = portions, closes
        self._rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._round: _Round | None = None
        self._connection: socket.socket | None = None
        self._ended = False
        self._stage = Stage(transfer.PIECE_BYTES)
        self._sent, self._took = 0, 0.0

    # -- the training thread -----------------------------------------------------------------------------------------
    def must_close(self) -> bool:
        if self._connection is None or self._left or not self._closes:
            return False
        try:
            return self._connection.recv(1, socket.MSG_DONTWAIT) == ASK
        except OSError:  # not yet, or the receiver is gone, which the step's sums will show
            return False

    def begin(self, current: _Round | None) -> None:
        self._round = current
        self._rounds.put(current)
        if current is not None and self._ended:
            current.begun.set()

    def mute(self) -> None:
        """Return when no portion is being read, and none will be in this round.

        One portion has been read, if there was one: otherwise short steps would never let a lane have its round.
        """
        if (current := self._round) is None:
            return
        if self._connection is not None:
            current.begun.wait()
        current.muted = True
        with current.sending:
            pass

    # -- its thread --------------------------------------------------------------------------------------------------
    def run(self, connection: socket.socket) -> None:
        try:
            sent = [tensor for portion in self._left for tensor in portion.tensors]
            with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True), apart(sent):
                if self._opening is not None:
                    self._opening.send(connection)
                    self._opening = None
                while (self._left or self._closes) and (current := self._rounds.get()) is not None:
                    self._connection = connection
                    self._take(current, connection)
        finally:
            self._ended = True
            if (last := self._round) is not None:  # once: the training thread may be about to end it
                last.begun.set()

    def _take(self, current: _Round, connection: socket.socket) -> None:
        begun = len(self._left)
        while self._left:
            with current.sending:
                current.begun.set()
                if current.muted or (len(self._left) < begun and not self._fits(current)):
                    break
                self._send(self._left.pop(0), connection)
        current.begun.set()
        if current.closing is not None:
            if current.last:
                connection.sendall(END)
                channel.receive(connection, bytearray(1))
            connection.sendall(CLOSING)
            current.closing.send(connection)
            self._closes = False
        connection.sendall(END)

    def _fits(self, current: _Round) -> bool:
        return time.monotonic() + self._left[0].nbytes * self._took / self._sent <= current.until

    def _send(self, portion: Portion, connection: socket.socket) -> None:
        began = time.monotonic()
        connection.sendall(PORTION)
        transfer.send_tensors(portion.tensors, connection, self._stage)
        self._sent += portion.nbytes
        self._took += time.monotonic() - began
