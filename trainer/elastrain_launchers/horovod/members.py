"""Horovod's hosts: the members of the newest generation. Imports no Horovod."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

ANNOUNCE_SECONDS = 5.0
"""Time after which a change that the running processes have not followed is announced to them again."""


class Members:
    """Has the interface of Horovod's ``HostDiscovery``: the hosts are the members of the newest generation.

    Horovod announces a change once, and drops the announcement if the process with rank 0 starts or resets at that
    time: a second joiner would be forgotten while the first one starts. Changes that were not followed are therefore
    withdrawn for one poll, and announced again.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``slots``: processes of each member. ``clock``: seconds."""
        self.driver: Any = None
        """Horovod's elastic driver; None: it has not been created yet."""
        self._slots, self._clock = slots, clock
        self._lock = threading.Condition()
        self._places: dict[str, tuple[str, int]] = {}
        self._active: dict[tuple[str, int], tuple[str, int]] = {}
        self._announced_at = 0.0
        self._answer: frozenset[str] = frozenset()

    def replace(self, places: Mapping[str, tuple[str, int]]) -> None:
        """The newest generation: address and port of each member's node."""
        with self._lock:
            self._places = dict(places)
            self._lock.notify_all()

    def place(self, member: str) -> tuple[str, int] | None:
        """Address and port of a member's node; None: it is not in the newest generation."""
        with self._lock:
            return self._places.get(member)

    def places(self) -> list[tuple[str, int]]:
        """Of all members."""
        with self._lock:
            return [*self._places.values()]

    def await_first(self) -> int:
        """Wait for the first generation; returns its number of members."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._places))
            return len(self._places)

    def active(self, member: str, slot: int, place: tuple[str, int] | None) -> None:
        """A process of the member runs at ``place``; None: it has ended."""
        with self._lock:
            if place is None:
                self._active.pop((member, slot), None)
            else:
                self._active[member, slot] = place

    def admits(self, address: str) -> bool:
        """Whether the address is a member's, or that of a process that has not left yet."""
        with self._lock:
            return any(address == known for known, _ in [*self._places.values(), *self._active.values()])

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Called by the driver once a second."""
        with self._lock:
            wanted, active = frozenset(self._places), frozenset(member for member, _ in self._active)
        self._answer = self._next_answer(wanted, active, self._clock())
        return dict.fromkeys(self._answer, self._slots)

    def _next_answer(self, wanted: frozenset[str], active: frozenset[str], now: float) -> frozenset[str]:
        assigned = frozenset(self.driver.host_assignments) if self.driver else frozenset()
        if not assigned or assigned == wanted or self.driver is None:
            return wanted
        before = assigned & (wanted | active)  # as it is now, without what is gone
        first = self.driver.get_coordinator_info()
        if first is None or self.driver.get_worker_client(first) is None:
            return before  # it has not started yet, and could not be told
        if self._answer != wanted:
            self._announced_at = now
            return wanted
        return before if now - self._announced_at >= ANNOUNCE_SECONDS else wanted
