"""The generations that were proposed to a rank, and its connections to them. Not thread-safe: its owner has a lock."""

from __future__ import annotations

import time

from elastrain.api.records import Generation
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.commit import control


class Proposals:
    """Those of the last few numbers."""

    def __init__(self) -> None:
        self.newest: Generation | None = None
        self.known: dict[int, Generation] = {}
        """By number, without those that are long superseded."""
        self.connected: dict[int, Communicator] = {}
        """By number: this rank could switch to them. The owner closes those that it takes out."""
        self.failed: dict[int, BaseException] = {}
        """By number: why this rank could not connect."""
        self._heard: dict[int, float] = {}
        self._aborted: dict[int, str] = {}
        self._has_place = True
        """Whether the newest includes this rank. Kept here: each step asks, and a generation can be large."""

    def learn(self, generation: Generation, *, has_place: bool) -> bool:
        """Returns whether it is the newest now, and was not before. ``has_place``: it includes this rank."""
        if generation.number <= self.number:
            return False
        self.newest, self._has_place = generation, has_place
        self.known = {n: g for n, g in self.known.items() if n > generation.number - control.SLOTS}
        self.known[generation.number] = generation
        self._heard = {n: self._heard.get(n, time.monotonic()) for n in self.known}
        return True

    @property
    def number(self) -> int:
        """Of the newest; 0: none is known."""
        return self.newest.number if self.newest else 0

    def heard_at(self, number: int) -> float | None:
        """Monotonic time of its proposal; None: it was forgotten, or is long superseded."""
        return self._heard.get(number)

    def available(self) -> frozenset[int]:
        """Numbers of those that this rank could switch to now; the newest counts if it does not include this rank."""
        without_me = frozenset[int]() if self.newest is None or self._has_place else frozenset({self.number})
        return frozenset(n for n, c in self.connected.items() if c.over is None) | without_me

    def needed(self, generation: Generation) -> bool:
        """Whether a connection to it is of use."""
        return generation.number >= self.number and self.known.get(generation.number) is generation

    def keep(self, generation: Generation, communicator: Communicator) -> bool:
        """``communicator`` has connected. Returns False if it is of no use."""
        if self.known.get(generation.number) is not generation:
            return False
        self.connected[generation.number] = communicator
        if (why := self._aborted.get(generation.number)) is not None:
            communicator.call_off(why)
        return True

    def abort(self, number: int, why: str) -> None:
        """It is over, whether or not this rank has connected to it."""
        self._aborted[number] = why
        if (communicator := self.connected.get(number)) is not None:
            communicator.call_off(why)

    def take_superseded(self) -> list[Communicator]:
        """Connections to others than the newest."""
        return [self.connected.pop(n) for n in list(self.connected) if n < self.number]
