"""Messages between places: delayed, reordered between independent pairs, lost while a link is cut."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sim.clock import Clock
from sim.process import Process

SILENCE = 10.0
"""Seconds after which a stream over a cut link is given up by its reader."""


class Refused(Exception):
    """There is no answer: the link is cut, or the other side does not run."""


class Network:
    def __init__(self, clock: Clock, rng: Random) -> None:
        self.clock, self.rng = clock, rng
        self.slow = 1.0
        """What delays are multiplied by."""
        self._cut: dict[frozenset[str], int] = {}
        self._streams: dict[frozenset[str], list[Stream]] = {}

    def delay(self) -> float:
        """Seconds that a message takes: mostly a millisecond or so, now and then a hundred times that."""
        r = self.rng.random()
        return (0.0005 + 0.004 * r if r < 0.95 else 0.2 * self.rng.random()) * self.slow

    def is_cut(self, a: str, b: str) -> bool:
        return bool(self._cut) and frozenset((a, b)) in self._cut

    def cut(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        self._cut[pair] = self._cut.get(pair, 0) + 1
        for stream in list(self._streams.get(pair, ())):
            self.clock.after(SILENCE, stream.give_up, stream.cuts)

    def heal(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        left = self._cut.get(pair, 0) - 1
        if left > 0:
            self._cut[pair] = left
            return
        self._cut.pop(pair, None)
        for stream in list(self._streams.get(pair, ())):
            stream.cuts += 1
            stream.flush()

    def call(
        self,
        caller: Process,
        place: str,
        request: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[Exception], None],
        timeout: float = 5.0,
    ) -> None:
        """Run ``request`` at ``place`` and bring the answer, or the exception that it raised, to the caller. Where
        request or answer is lost, ``failed`` gets :class:`Refused`: the request may or may not have had its effect."""
        clock, given_up = self.clock, self.clock.now + timeout

        def arrive() -> None:
            if self.is_cut(caller.place, place):
                clock.at(given_up, caller.do, failed, Refused("no answer"))
                return
            try:
                answer = request()
            except Refused as error:
                clock.after(self.delay(), caller.do, failed, error)
                return
            except Exception as error:  # the answer is an error
                back(failed, error)
                return
            back(answered, answer)

        def back(take: Callable[[Any], None], value: Any) -> None:
            clock.after(self.delay(), deliver, take, value)

        def deliver(take: Callable[[Any], None], value: Any) -> None:
            if self.is_cut(caller.place, place):
                clock.at(given_up, caller.do, failed, Refused("no answer"))
            else:
                caller.do(take, value)

        clock.after(self.delay(), arrive)


class Stream:
    """Messages from a place to a process, in order. Those sent while the link is cut come when it heals, if the reader
    has not given up by then."""

    def __init__(
        self,
        network: Network,
        place: str,
        reader: Process,
        take: Callable[[Any], None],
        ended: Callable[[], None],
        lag: Callable[[], float] | None = None,
    ) -> None:
        self.cuts = 0
        self.open = True
        self._network = network
        self._pair = frozenset((place, reader.place))
        self._ends = (place, reader.place)
        self._reader, self._take, self._ended = reader, take, ended
        self._lag = lag or network.delay
        self._queue: list[Any] = []
        self._last = 0.0
        network._streams.setdefault(self._pair, []).append(self)
        if network.is_cut(*self._ends):
            network.clock.after(SILENCE, self.give_up, self.cuts)

    def send(self, message: Any) -> None:
        clock = self._network.clock
        self._last = max(self._last, clock.now + self._lag())
        self._queue.append(message)
        clock.at(self._last, self.flush_one)

    def flush_one(self) -> None:
        if self.open and self._queue and not self._network.is_cut(*self._ends):
            self._reader.do(self._deliver, self._queue.pop(0))

    def flush(self) -> None:
        """The link is whole again: what is late comes now."""
        for _ in range(len(self._queue)):
            self._network.clock.after(0.0, self.flush_one)

    def _deliver(self, message: Any) -> None:
        if self.open:
            self._take(message)

    def give_up(self, cuts: int) -> None:
        """The reader has heard nothing for long, if the link has not healed since."""
        if self.cuts == cuts and self._network.is_cut(*self._ends):
            self.end()

    def end(self) -> None:
        """Broken: the reader hears of it."""
        if self.open:
            self.close()
            self._network.clock.after(self._network.delay(), self._reader.do, self._ended)

    def close(self) -> None:
        """By the reader."""
        self.open = False
        streams = self._network._streams.get(self._pair, [])
        if self in streams:
            streams.remove(self)
