"""How the members of a generation are spread over keys, so that nobody reads a list as long as the job is large.

The key ``generation`` reaches every member. Up to :data:`INLINE` members are in it; of a larger generation it has the
sizes and the store only. All are in ``roster/<number>/<part>`` besides, written in the same transaction: a member finds
its own place in the one part that its id hashes to, a new leader and the operator read all parts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

from elastrain.api.records import Generation, GenerationMember, Record, Roster

INLINE = 64
"""Members that the record itself may hold."""
MAX_PARTS = 100
"""etcd takes 128 operations in a transaction."""
KEPT = 8
"""Generations whose members are kept: as many as may be outstanding, and the one in force."""


class Part(Record):
    """Some members of a generation, in rank order. Written by the leader, never changed, deleted a few generations
    later."""

    members: tuple[GenerationMember, ...] = ()


def parts_of(size: int) -> int:
    """Number of parts for so many members; at least one."""
    return max(1, min(MAX_PARTS, math.ceil(size / INLINE)))


def part_of(member_id: str, parts: int) -> int:
    """The part that says where ``member_id`` is."""
    return zlib.crc32(member_id.encode()) % parts


def split(generation: Generation) -> list[Part]:
    """All members of a whole generation, by part."""
    parts: list[list[GenerationMember]] = [[] for _ in range(parts_of(generation.size))]
    for member in generation.members:
        parts[part_of(member.id, len(parts))].append(member)
    return [Part(members=tuple(members)) for members in parts]


def join(parts: Iterable[Part]) -> tuple[GenerationMember, ...]:
    """The members of all parts, in rank order."""
    return tuple(sorted((m for part in parts for m in part.members), key=lambda m: m.rank_offset))


def header(generation: Generation) -> Generation:
    """A whole generation as it is written to the key that everybody watches."""
    return _part(generation, ())


def seen_by(generation: Generation, member_id: str) -> Generation:
    """``generation`` as one member needs it: of a large one, only that member's place."""
    if generation.roster is not None:
        return generation  # it is what this member has found
    place = generation.member(member_id)
    return _part(generation, (place,) if place else ())


def whole(short: Generation, members: tuple[GenerationMember, ...]) -> Generation:
    """The header of a large generation with all its members."""
    return Generation.model_validate({**_fields(short), "members": members, "roster": None})


def with_place(short: Generation, place: GenerationMember | None) -> Generation:
    """The header of a large generation with the reader's place, if it has one."""
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
    return {name: getattr(generation, name) for name in Generation.model_fields}
