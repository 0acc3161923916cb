"""When the collectives of a generation must be broken off because somebody in it will not answer any more."""

from __future__ import annotations

from collections.abc import Mapping

from elastrain.api.records import Generation
from elastrain.rendezvous.election import FIRST
from elastrain.rendezvous.suspicion import place_in

HEARSAY_SECONDS = 1.0
"""How long a member whose collectives broke leaves it to the first few of its generation to say so."""


def why_abort(generation: Generation, me: str, ended: Mapping[int, str]) -> str | None:
    """Why nobody should wait in ``generation`` any longer, or None while it can still make progress. Pure.

    The leader says so (``ended``): only it sees all members. It does not count those that left as they should.
    """
    return ended.get(generation.number) if generation.member(me) is not None else None


def say_broken_at(generation: Generation | None, me: str, since: float) -> float:
    """When to write that ``generation`` was seen to break, at ``since``, if the leader has not ended it by then. Pure.

    All ranks see it break, and the leader needs to hear it once: O(1) writes, not O(N).
    """
    place = place_in(generation, me)
    return since if place is None or place < FIRST else since + HEARSAY_SECONDS
