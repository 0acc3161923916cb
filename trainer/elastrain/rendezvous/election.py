"""Which member leads: the holder of the key ``leader``. Pure: decides when a member claims that key.

The members do not succeed each other in order of registration: etcd finds the next one by reading all of them, so a
chain of predecessors costs O(N²) to build. One key that all members watch anyway costs nothing while the leader lives.
Members claim a vacant key in the order of their places, so that usually only one does.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from elastrain.api.records import Generation

FIRST = 8
"""Members of a generation, by place, that claim at once; the others first leave the claim to them."""
_STEP_SECONDS = 0.05
_LONGEST_SECONDS = 1.0
_LATE_SECONDS = 5.0
"""Seconds after which no member leaves the claim to another one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One member's view of the leader's key."""

    member: str
    """The own id."""
    lease: int
    """The own lease; 0: none at present."""
    leader: str | None
    """Id of the member that holds the key; None: it is vacant."""
    leader_lease: int
    mod_revision: int
    """mod_revision of the key; 0: it does not exist."""
    since: float | None
    """Since when the key is vacant; None: it is not, or this member has never seen a leader."""
    place: int | None
    """The own place in the newest generation, from 0; None: not in it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the key if its mod_revision is still this one."""

    mod_revision: int


def elect(candidate: Candidate, now: float) -> Claim | float | None:
    """Claim the leader's key now, or decide again at the returned time; None: a member leads."""
    s = candidate
    if not s.lease:
        return None
    if s.leader is not None:
        # Held from before a restart of the ranks or a lost lease: it must name the present id and lease.
        stale = (s.leader_lease == s.lease) != (s.leader == s.member)
        return Claim(s.mod_revision) if stale else None
    if s.since is None:
        return Claim(s.mod_revision)
    due = s.since + _patience(s)
    return Claim(s.mod_revision) if now >= due else due


def place_in(generation: Generation | None, member_id: str) -> int | None:
    """Index in the order of its members, from 0; exact if all have the same number of ranks."""
    place = generation.member(member_id) if generation else None
    return place.rank_offset // place.slots if place else None


def _patience(s: Candidate) -> float:
    """Seconds to leave the claim to others."""
    if s.place is None:
        return _STEP_SECONDS + (zlib.crc32(s.member.encode()) % 1000) / 1000 * (_LONGEST_SECONDS - _STEP_SECONDS)
    after = _STEP_SECONDS * max(0, s.place - 1)
    return after if after <= _LONGEST_SECONDS else min(_LATE_SECONDS, _LONGEST_SECONDS + s.place / 1000)
