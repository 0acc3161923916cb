"""When a rank must abort a generation's collectives, and when a member reports that a generation broke."""

from __future__ import annotations

from collections.abc import Mapping

from elastrain.api.records import Generation
from elastrain.rendezvous.election import FIRST, place_in

REPORT_LATER_SECONDS = 1.0
"""Seconds for which a member leaves the report of a broken generation to that generation's first members."""


def why_abort(generation: Generation, me: str, ended: Mapping[int, str]) -> str | None:
    """Why the ranks of ``generation`` must stop waiting in it; None while it can make progress. Pure.

    The leader decides (``ended``), because only the leader sees all members. Members that left as planned do not count.
    """
    return ended.get(generation.number) if generation.member(me) is not None else None


def report_broken_at(generation: Generation | None, me: str, since: float) -> float:
    """When to write that ``generation`` broke at ``since``, unless the leader has ended it by then. Pure.

    It breaks on all ranks, but the leader needs one report: O(1) writes instead of O(N).
    """
    place = place_in(generation, me)
    return since if place is None or place < FIRST else since + REPORT_LATER_SECONDS
