"""What one member sees of its job at one etcd revision, and plain questions about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from elastrain.api.records import Closed, Generation, Member, Phase, Target


@dataclass(frozen=True, slots=True)
class Seen:
    """A member's record with its place in the order of registration."""

    record: Member
    create_revision: int

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True)
class View:
    """A consistent snapshot of a job's records."""

    self_id: str
    target: Target | None = None
    members: tuple[Seen, ...] = ()
    """Members that have a key, in any order."""
    generation: Generation | None = None
    """The newest generation, the *base* of the next."""
    generation_mod_revision: int = 0
    """Of the key ``generation``; 0: it does not exist."""
    finished: bool = False
    """``progress.finished``, or :attr:`closed`: nothing is formed any more."""
    closed: Closed | None = None
    suspects: frozenset[str] = frozenset()
    """Ids of members that a probe found dead although their lease still runs."""
    unsure: frozenset[str] = frozenset()
    """Ids of silent members that are being probed now."""
    step: int = 0
    """Greatest number of committed steps that anybody reported."""
    revision: int = 0
    """etcd's revision of this snapshot."""

    @cached_property
    def alive(self) -> dict[str, Seen]:
        """Members that have a key, are not suspect and have no younger incarnation (a worker has one agent at a time,
        so an older one is dead even though its lease still runs); oldest first."""
        ordered = sorted(self.members, key=lambda m: m.create_revision)
        youngest = {m.record.worker: m.id for m in ordered}
        return {m.id: m for m in ordered if m.id not in self.suspects and youngest[m.record.worker] == m.id}

    @cached_property
    def leader(self) -> str | None:
        """Id of the oldest live member."""
        return next(iter(self.alive), None)

    @cached_property
    def base_alive(self) -> tuple[Seen, ...]:
        """Live members of the newest generation, in rank order."""
        if self.generation is None:
            return ()
        return tuple(self.alive[m.id] for m in self.generation.members if m.id in self.alive)

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Ids of members of the newest generation that are not alive, in rank order."""
        if self.generation is None:
            return ()
        return tuple(m.id for m in self.generation.members if m.id not in self.alive)

    @cached_property
    def broken(self) -> bool:
        """Whether a member of the newest generation saw its collectives fail."""
        number = self.generation.number if self.generation else 0
        return any(m.record.broken >= number for m in self.base_alive)

    @property
    def intact(self) -> bool:
        """The newest generation has all its members and none of them saw it fail. True of an empty one."""
        return not self.lost and not self.broken

    def is_leaving(self, member: Seen) -> bool:
        """By its own word or by the target's."""
        wanted_out = self.target is not None and member.record.worker in self.target.leaving
        return wanted_out or member.record.phase is Phase.LEAVING

    @cached_property
    def leavers(self) -> tuple[Seen, ...]:
        """Live members of the newest generation that are leaving."""
        return tuple(m for m in self.base_alive if self.is_leaving(m))

    @cached_property
    def stayers(self) -> tuple[Seen, ...]:
        """Live members of the newest generation that can be in the next one now, in rank order."""
        return tuple(m for m in self.base_alive if is_ready(m) and not self.is_leaving(m))

    @cached_property
    def unready(self) -> tuple[Seen, ...]:
        """Live members of the newest generation that want to stay but cannot be in another one yet."""
        return tuple(m for m in self.base_alive if not is_ready(m) and not self.is_leaving(m))

    @cached_property
    def outsiders(self) -> tuple[Seen, ...]:
        """Live members, not leaving, that are not in the newest generation; oldest first."""
        inside = {m.id for m in self.base_alive}
        return tuple(m for m in self.alive.values() if m.id not in inside and not self.is_leaving(m))

    @cached_property
    def joiners(self) -> tuple[Seen, ...]:
        """Outsiders that are ready and fit under the target's desired size; oldest first."""
        desired = self.target.desired if self.target else 0
        room = max(0, desired - len(self.stayers) - len(self.unready))
        return tuple(m for m in self.outsiders if is_ready(m))[:room]

    @cached_property
    def warming(self) -> tuple[Seen, ...]:
        """Outsiders that are on their way to be ready."""
        return tuple(m for m in self.outsiders if m.record.phase is Phase.WARMING)

    @cached_property
    def ended(self) -> bool:
        """Nothing is formed any more."""
        return self.finished or any(m.record.phase is Phase.FINISHED for m in self.members)

    @cached_property
    def in_force(self) -> int | None:
        """The oldest generation that still trains: the least one adopted by a live member of the newest generation
        (of an empty one: by any live member) that has not seen it fail. None: none trains."""
        number = self.generation.number if self.generation else 0
        empty = self.generation is not None and not self.generation.members
        members = self.alive.values() if empty else self.base_alive
        trains = [m.record.generation for m in members if m.record.generation > m.record.broken]
        return min(trains) if trains and number else None

    @property
    def adopted(self) -> bool:
        """Whether all who train have switched to the newest generation (or, if it is empty, have stopped for it)."""
        if self.generation is None:
            return True
        number = self.generation.number
        if not self.generation.members:
            return self.in_force is None or self.in_force >= number
        return all(m.record.generation >= number for m in self.base_alive)


def is_ready(member: Seen) -> bool:
    """Can connect to a next generation, and serves a store in case it comes first in it."""
    return member.record.phase is Phase.READY and member.record.store_port > 0
