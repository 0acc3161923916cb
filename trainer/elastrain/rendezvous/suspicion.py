"""Detects dead members before their leases expire: which member probes which, and how long an answer counts."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elastrain.api.records import Generation, Leader, Member
from elastrain.rendezvous.election import FIRST
from elastrain.rendezvous.probe import Evidence, probe
from elastrain.rendezvous.view import View

REPEAT_SECONDS = 2.0
"""Seconds after which a silent member is probed again, while its generation stays broken."""


@dataclass(slots=True)
class _Answer:
    evidence: Evidence | None  # None: not answered yet
    at: float


@dataclass(frozen=True, slots=True)
class Silent:
    """A member that may be dead, and the address at which it answers probes."""

    id: str
    address: str
    agent_port: int


def whom_to_probe(view: View, own: Member, leader: Leader | None) -> tuple[Silent, ...]:
    """The members to probe when a generation is broken. Pure.

    The leader probes all members of that generation, and of the newest one, that did not report the failure themselves.
    The first few other members, if their own collectives failed, probe only the leader. So N members cost O(N) probes;
    a dead leader is detected first, then its successor detects the rest.
    """
    if view.generation is None:
        return ()
    if view.leader == own.id:
        number = view.breaking
        if not number:
            return ()
        asked = (g for g in (*view.generations, view.generation) if g.number in (number, view.generation.number))
        ids = dict.fromkeys(m.id for g in asked for m in g.members if m.id in view.alive and m.id != own.id)
        seen = (view.alive[i].record for i in ids)
        return tuple(_silent(r) for r in seen if r.broken < number and r.agent_port)
    place = place_in(view.generation, own.id)
    broken = own.broken >= max(1, own.generation) or (view.complete and view.breaking > 0)
    if leader is None or not leader.agent_port or not broken or place is None or place >= FIRST:
        return ()
    return (Silent(leader.member, leader.address, leader.agent_port),)


def place_in(generation: Generation | None, member_id: str) -> int | None:
    """Index in the order of its members, from 0; exact if all have the same number of ranks."""
    place = generation.member(member_id) if generation else None
    return place.rank_offset // place.slots if place else None


def _silent(record: Member) -> Silent:
    return Silent(record.id, record.address, record.agent_port)


class Answers:
    """The results of probes, and which probes are due. Pure except for its own state."""

    def __init__(self, lease_ttl: float) -> None:
        self.repeat_at: float | None = None
        """When silent members are to be probed again; None: there are none."""
        self._lifetime = 2.0 * lease_ttl  # by then the lease has decided
        self._answers: dict[str, _Answer] = {}

    def due(self, wanted: Sequence[Silent], known: Container[str] | None, now: float) -> list[Silent]:
        """The members of ``wanted`` to be probed now; they count as probed. Forgets old answers, and those of members
        that are not among the ``known`` (None: unknown)."""
        for member_id, answer in list(self._answers.items()):
            old = answer.evidence is not None and now >= answer.at + self._lifetime
            if old or (known is not None and member_id not in known):
                del self._answers[member_id]
        found = [member for member in wanted if self._is_due(member.id, now)]
        self._answers.update({member.id: _Answer(None, now) for member in found})
        self.repeat_at = now + REPEAT_SECONDS if wanted else None
        return found

    def heard(self, member_id: str, evidence: Evidence, now: float) -> None:
        """The answer of a probed member."""
        self._answers[member_id] = _Answer(evidence, now)

    def of(self, self_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of members found dead, and of members whose answer is pending."""
        dead = frozenset(i for i, a in self._answers.items() if a.evidence is Evidence.DEAD and i != self_id)
        unsure = frozenset(i for i, a in self._answers.items() if a.evidence is None)
        return dead, unsure

    def _is_due(self, member_id: str, now: float) -> bool:
        answer = self._answers.get(member_id)
        if answer is None:
            return True
        return answer.evidence not in (None, Evidence.DEAD) and now >= answer.at + REPEAT_SECONDS


class Probes:
    """Probes members in its own threads, which call ``answered`` with member id and evidence."""

    def __init__(self, answered: Callable[[str, Evidence], None]) -> None:
        self._answered = answered
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="probe")

    def ask(self, members: Sequence[Silent]) -> None:
        for member in members:
            self._pool.submit(self._probe, member)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _probe(self, member: Silent) -> None:
        self._answered(member.id, probe(member.address, member.agent_port, member.id))
