"""Builders of records that tests of several areas need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from elastrain.agent.settings import Settings
from elastrain.api.records import Generation, GenerationMember


def settings(**fields: Any) -> Settings:
    """Of the agent of worker ``a`` of job ``j``."""
    return Settings(**{"job": "j", "job_uid": "u", "worker": "a", "address": "10.0.0.1", **fields})


def generation(
    number: int, *ids: str, slots: int | Sequence[int] = 1, reason: str = "Grow", leader: str = "", **fields: Any
) -> Generation:
    """Members in the order of their ranks. ``a.x`` is a member of worker ``a``, ``job-0`` one of ``job-0``.

    ``slots``: of each member, or of all. ``leader``: absent, the first member.
    """
    each = [slots] * len(ids) if isinstance(slots, int) else slots
    offsets = accumulate(each, initial=0)
    members = tuple(
        GenerationMember(id=i, worker=i.partition(".")[0], address="10.0.0.1", store_port=1, slots=n, rank_offset=o)
        for i, n, o in zip(ids, each, offsets, strict=False)
    )
    return Generation(number=number, members=members, reason=reason, leader=leader or (*ids, "leader")[0], **fields)
