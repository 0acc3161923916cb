"""Which member leads: the holder of the key ``leader``. Pure: decides when a member claims that key.

Members are not asked in the order of their registration: etcd answers "who is next" by reading all of them, so a chain
of predecessors costs O(N²) to build. One key that all members watch anyway costs nothing while the leader lives, and
members reach for a vacant one in the order of their places, so that as a rule only one does.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

FIRST = 8
"""So many members of a generation, by place, speak up at once; the others leave it to them for a while."""
_STEP_SECONDS = 0.05
_LONGEST_SECONDS = 1.0
_LATE_SECONDS = 5.0
"""After so many seconds no member leaves the claim to another one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one member knows about the leader's place."""

    member: str
    """The own id."""
    lease: int
    """The own lease; 0: none at present."""
    leader: str | None
    """Id of the member that holds the place; None: it is vacant."""
    leader_lease: int
    mod_revision: int
    """Of the key; 0: it does not exist."""
    suspect: bool
    """A probe has found the leader dead."""
    since: float | None
    """Since when it is vacant or suspect; None: it is neither, or this member has never seen a leader."""
    place: int | None
    """The own place in the newest generation, from 0; None: not in it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the place if the key's mod_revision is still this one."""

    mod_revision: int


def elect(candidate: Candidate, now: float) -> Claim | float | None:
    """Reach for the leader's place now, or look again at the returned time; None: others lead, or we do."""
    s = candidate
    if not s.lease:
        return None
    if s.leader is not None and not s.suspect:
        # Ours from before our ranks were started anew, or from before our lease was lost: it must say who we are now.
        stale = (s.leader_lease == s.lease) != (s.leader == s.member)
        return Claim(s.mod_revision) if stale else None
    if s.since is None:
        return Claim(s.mod_revision)
    due = s.since + _patience(s)
    return Claim(s.mod_revision) if now >= due else due


def _patience(s: Candidate) -> float:
    """Seconds to leave it to others."""
    if s.place is None:
        return _STEP_SECONDS + (zlib.crc32(s.member.encode()) % 1000) / 1000 * (_LONGEST_SECONDS - _STEP_SECONDS)
    after = _STEP_SECONDS * max(0, s.place - 1)
    return after if after <= _LONGEST_SECONDS else min(_LATE_SECONDS, _LONGEST_SECONDS + s.place / 1000)
