"""Distributes the members of a generation over keys, so that no reader needs a list as long as the job is large.

The key ``generation`` reaches every member. It holds up to :data:`INLINE` members; for a larger generation it holds
only the sizes and the store. The same transaction writes all members to ``roster/<number>/<part>``. A member reads its
own place from the one part that its id hashes to; a new leader and the operator read all parts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

from elastrain.api.base import Many, Record
from elastrain.api.records.generation import Generation, GenerationMember, Roster

INLINE = 64
"""Largest number of members in the record itself."""
MAX_PARTS = 100
"""etcd accepts 128 operations in a transaction."""
KEPT = 8
"""Generations whose members are kept: the largest number of outstanding ones, and the one in force."""


class Part(Record):
    """Some members of a generation, in rank order. Written by the leader, immutable, deleted a few generations
    later."""

    members: Many[GenerationMember] = ()


def parts_of(size: int) -> int:
    """Number of parts for ``size`` members; at least one."""
    return max(1, min(MAX_PARTS, math.ceil(size / INLINE)))


def part_of(member_id: str, parts: int) -> int:
    """The part that holds ``member_id``."""
    return zlib.crc32(member_id.encode()) % parts


def split(generation: Generation) -> list[Part]:
    """All members of a complete generation, by part."""
    parts: list[list[GenerationMember]] = [[] for _ in range(parts_of(generation.size))]
    for member in generation.members:
        parts[part_of(member.id, len(parts))].append(member)
    return [Part(members=tuple(members)) for members in parts]


def join(parts: Iterable[Part]) -> tuple[GenerationMember, ...]:
    """The members of all parts, in rank order."""
    return tuple(sorted((m for part in parts for m in part.members), key=lambda m: m.rank_offset))


def header(generation: Generation) -> Generation:
    """The header of a complete generation, as the watched key holds it."""
    return _part(generation, ())


def seen_by(generation: Generation, member_id: str) -> Generation:
    """The view of one member on ``generation``: of a large one, only that member's place."""
    if generation.roster is not None:
        return generation  # holds this member's place already
    place = generation.member(member_id)
    return _part(generation, (place,) if place else ())


def whole(short: Generation, members: tuple[GenerationMember, ...]) -> Generation:
    """The header of a large generation, completed with all its members."""
    return Generation.model_validate({**_fields(short), "members": members, "roster": None})


def with_place(short: Generation, place: GenerationMember | None) -> Generation:
    """The header of a large generation, completed with the reader's place, if it has one."""
    return Generation.model_validate({**_fields(short), "members": (place,) if place else ()})


def _part(generation: Generation, members: tuple[GenerationMember, ...]) -> Generation:
    first = generation.first
    if generation.size <= INLINE or first is None:
        return generation
    roster = Roster(
        size=generation.size, world_size=generation.world_size, first=first, parts=parts_of(generation.size)
    )
    return Generation.model_validate({**_fields(generation), "members": members, "roster": roster})


def _fields(generation: Generation) -> dict[str, object]:
    """All fields, including those of a newer leader that this version does not know."""
    known = {name: getattr(generation, name) for name in Generation.model_fields}
    return {**(generation.model_extra or {}), **known}
