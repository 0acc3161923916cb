"""The generations that were proposed to a rank, and what is known of its connections to them. Pure."""

from __future__ import annotations

from elastrain.api.records import Generation
from elastrain.elastic.commit import control


class Proposals:
    """Those of the last few numbers."""

    def __init__(self) -> None:
        self.newest: Generation | None = None
        self.known: dict[int, Generation] = {}
        """By number, without those that are long superseded."""
        self.connected: set[int] = set()
        """Numbers of those to which this rank is connected, and which it has not begun to enter."""
        self.failed: dict[int, tuple[str, bool]] = {}
        """By number: why this rank could not connect, and whether it has failed itself."""
        self.aborted: dict[int, str] = {}
        """By number: why the generation is over, whether or not this rank has connected to it."""
        self._proposed_at: dict[int, float] = {}
        self._has_place = True
        """Whether the newest includes this rank. Kept here: each step asks, and a generation can be large."""

    def learn(self, generation: Generation, now: float, *, has_place: bool) -> bool:
        """Returns whether it is the newest now, and was not before. ``has_place``: it includes this rank."""
        if generation.number <= self.number:
            return False
        self.newest, self._has_place = generation, has_place
        self.known = {n: g for n, g in self.known.items() if n > generation.number - control.SLOTS}
        self.known[generation.number] = generation
        self._proposed_at = {n: self._proposed_at.get(n, now) for n in self.known}
        return True

    @property
    def number(self) -> int:
        """Of the newest; 0: none is known."""
        return self.newest.number if self.newest else 0

    def proposed_at(self, number: int) -> float | None:
        """Monotonic time of its proposal; None: it was forgotten, or is long superseded."""
        return self._proposed_at.get(number)

    def available(self, over: dict[int, str]) -> frozenset[int]:
        """Numbers of those that this rank could switch to now; the newest counts if it does not include this rank.

        ``over``: connections of no use, by number."""
        without_me = frozenset[int]() if self.newest is None or self._has_place else frozenset({self.number})
        return frozenset(self.connected.difference(over)) | without_me

    def needed(self, generation: Generation) -> bool:
        """Whether a connection to it is of use."""
        return generation.number >= self.number and self.known.get(generation.number) is generation

    def take_superseded(self) -> list[int]:
        """Connections to others than the newest."""
        old = sorted(n for n in self.connected if n < self.number)
        self.connected.difference_update(old)
        return old
