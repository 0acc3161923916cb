"""The layout of a vouch page: until when an agent's ranks may commit steps, in a few bytes shared with them.

The agent writes the page several times a second, by memory stores only; a rank reads it before each commit. So a rank
stops by itself if its agent is stopped or hangs, and neither side waits for a message. One page per incarnation of the
ranks, beside the agent's socket. All processes of a machine share the monotonic clock.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

_LAYOUT = struct.Struct("<q ddqq q")
"""Sequence number, the fields of :class:`Vouch` in order, sequence number again."""
SIZE = _LAYOUT.size
"""Bytes of a page."""


@dataclass(frozen=True, slots=True)
class Vouch:
    """The content of a page. Times are seconds of the monotonic clock."""

    leased: float = float("-inf")
    """Until then the member's lease lives for certain: no generation begins without a member of its own."""
    away: float = float("-inf")
    """Until then a generation of several members goes on although etcd is away."""
    fenced: int = 0
    """This generation and earlier ones commit no further step."""
    fenced_alone: int = 0
    """The same for generations of one member."""

    def covers(self, generation: int, members: int, now: float) -> bool:
        """Whether a rank of ``generation``, which has so many members, may commit a step now."""
        if members == 1:
            return generation > max(self.fenced, self.fenced_alone) and now < self.leased
        return generation > self.fenced and now < max(self.leased, self.away)


def path_of(socket_path: str) -> str:
    """Path of the page, beside the socket of the agent's incarnation."""
    return f"{socket_path}.vouch"


def write(page: memoryview, count: int, vouch: Vouch) -> None:
    """Store ``vouch`` into ``page`` (``SIZE`` bytes). ``count`` grows with each write, from 1."""
    _LAYOUT.pack_into(page, 0, count, *astuple(vouch), count)


def parse(raw: bytes) -> Vouch | None:
    """The content of a copied page; None for an unwritten page or a torn copy."""
    count, leased, away, fenced, fenced_alone, end = _LAYOUT.unpack(raw)
    return Vouch(leased, away, fenced, fenced_alone) if count == end and count else None
