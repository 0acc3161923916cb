"""Which members look dead before their lease says so: who probes whom, and for how long an answer counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elastrain.rendezvous.probe import Evidence, probe
from elastrain.rendezvous.view import Seen, View

REPEAT_SECONDS = 2.0
"""A silent member is asked again after so long, while its generation stays broken."""


@dataclass(slots=True)
class _Answer:
    evidence: Evidence | None  # None: not there yet
    at: float


def whom_to_probe(view: View) -> tuple[Seen, ...]:
    """Members to ask, when a generation is broken. Pure.

    The leader asks all of that generation that did not say themselves that it broke; everybody else asks the leader
    only. So N members cost O(N) probes, and a dead leader is found, then the next one, then the rest.
    """
    if view.generation is None or not view.broken:
        return ()
    number = view.generation.number
    silent = [m for m in view.members if m.record.broken < number and m.record.agent_port and m.id != view.self_id]
    if view.leader == view.self_id:
        return tuple(m for m in silent if view.generation.member(m.id) is not None)
    return tuple(m for m in silent if m.id == view.leader)


class Suspicion:
    """Probes in threads of their own; ``answered`` is called from them. The rest is for the owner's one thread."""

    def __init__(self, lease_ttl: float, clock: Callable[[], float], answered: Callable[[], None]) -> None:
        self._lifetime = 2.0 * lease_ttl  # by then the lease has decided
        self._clock = clock
        self._answered = answered
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="probe")
        self._repeat_at: float | None = None

    def look(self, view: View) -> None:
        """Start the probes that ``view`` (without suspects) calls for, and forget old answers."""
        now = self._clock()
        present = {m.id for m in view.members}
        with self._lock:
            for member_id, answer in list(self._answers.items()):
                if member_id not in present or (answer.evidence is not None and now >= answer.at + self._lifetime):
                    del self._answers[member_id]
            dead = frozenset(i for i, a in self._answers.items() if a.evidence is Evidence.DEAD)
        known = View(
            self_id=view.self_id, members=view.members, generation=view.generation, target=view.target, suspects=dead
        )
        wanted = whom_to_probe(known)
        for member in wanted:
            if member.id not in dead and self._due(member.id, now):
                self._pool.submit(self._probe, member)
        self._repeat_at = now + REPEAT_SECONDS if wanted else None

    def of(self, view: View) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of members that were found dead, and of members whose answer is awaited."""
        with self._lock:
            dead = frozenset(i for i, a in self._answers.items() if a.evidence is Evidence.DEAD and i != view.self_id)
            unsure = frozenset(i for i, a in self._answers.items() if a.evidence is None)
        return dead, unsure

    def deadlines(self) -> list[float]:
        """When to look again even if nothing happens."""
        return [self._repeat_at] if self._repeat_at is not None else []

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _due(self, member_id: str, now: float) -> bool:
        with self._lock:
            answer = self._answers.get(member_id)
            if answer is not None and (answer.evidence is None or now < answer.at + REPEAT_SECONDS):
                return False
            self._answers[member_id] = _Answer(None, now)
            return True

    def _probe(self, member: Seen) -> None:
        evidence = probe(member.record.address, member.record.agent_port, member.id)
        with self._lock:
            self._answers[member.id] = _Answer(evidence, self._clock())
        self._answered()
