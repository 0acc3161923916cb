"""What the leader of the members writes: who trains together."""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from elastrain.api.base import Many, Record, Text
from elastrain.api.records.member import PartOfState


class GenerationMember(Record):
    """A member's place in a generation."""

    model_config = ConfigDict(extra="allow")  # members write a generation again after a loss of etcd's data

    id: str
    worker: str
    address: str
    store_port: int
    slots: Annotated[int, Field(ge=1)] = 1
    rank_offset: Annotated[int, Field(ge=0)]
    """Global rank of its local rank 0."""
    part: PartOfState | None = None
    """None: a whole copy. A leader that has not seen the member's own record knows by it who may replace it."""


class Roster(Record):
    """Replaces the member list in the record of a large generation; the members are in ``roster/``, in parts."""

    model_config = ConfigDict(extra="allow")  # members write a generation again after a loss of etcd's data

    size: Annotated[int, Field(ge=1)]
    """Members."""
    world_size: Annotated[int, Field(ge=1)]
    """Ranks."""
    first: GenerationMember
    parts: Annotated[int, Field(ge=1)]
    """Number of keys that hold the members: see :mod:`elastrain.api.records.roster`."""


class Generation(Record):
    """A numbered, immutable set of members that train together. Written by the leader by compare-and-swap.

    Numbers grow without gaps. An empty set orders a stop at a step boundary: all members checkpoint, leaving members
    exit, and the others keep their state and wait for the next generation.
    """

    model_config = ConfigDict(
        extra="allow",  # members write a generation again after a loss of etcd's data
        hide_input_in_errors=True,  # an error of validation would quote the secret
    )

    number: Annotated[int, Field(ge=1)]
    members: Many[GenerationMember] = ()
    """Members in rank order. The first member's store is the generation's rendezvous point. With ``roster``: empty, or
    only the member that the reader requested."""
    reason: str
    """Reason of its formation, one CamelCase word: Start, Grow, Drain, Lost, Broken, Replace, Suspend, Stop."""
    leader: str
    """Id of the member that wrote it."""
    step: int = 0
    """Committed steps known to the leader."""
    ended: Many[int] = ()
    """Earlier generations that lost a member or broke; their members must leave them."""
    why: Text = ""
    """The cause of their end."""
    roster: Roster | None = None
    """Set if the generation has too many members for a record that all members receive."""
    secret: Annotated[str, Field(repr=False)] = ""
    """32 random bytes in hexadecimal digits, by which its ranks prove to each other that they belong to it. Only the
    job's own user of etcd can read the record; nothing else may contain the secret."""

    @model_validator(mode="after")
    def _offsets_follow_slots(self) -> Self:
        offset = 0
        for m in self.members if self.roster is None else ():
            if m.rank_offset != offset:
                raise ValueError(f"members: {m.id} has rank_offset {m.rank_offset}, expected {offset}")
            offset += m.slots
        return self

    @property
    def size(self) -> int:
        """Number of members; 0: the order to stop."""
        return self.roster.size if self.roster else len(self.members)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.roster.world_size if self.roster else sum(m.slots for m in self.members)

    @property
    def first(self) -> GenerationMember | None:
        """The member with rank 0, which serves the store; None for an empty generation."""
        return self.roster.first if self.roster else next(iter(self.members), None)

    @property
    def store(self) -> tuple[str, int] | None:
        """Host and port of the generation's store; None for an empty generation."""
        return (self.first.address, self.first.store_port) if self.first else None

    @cached_property
    def _places(self) -> dict[str, GenerationMember]:
        return {m.id: m for m in self.members}

    @property
    def ids(self) -> Set[str]:
        """Ids of the listed members, in rank order."""
        return self._places.keys()

    def member(self, member_id: str) -> GenerationMember | None:
        return self._places.get(member_id)


class Leader(Record):
    """The leader: it watches all members and writes generations. Held under that member's lease, read by all agents."""

    member: str
    """Id of the member."""
    worker: str
    address: str


class Ended(Record):
    """Broken generations without a successor yet. Written by the leader, read by all agents."""

    numbers: Many[int]
    why: Text
    """In words."""
