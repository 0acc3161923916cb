"""One member's view of its job at one etcd revision, with derived properties. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.records import UNREADABLE, Closed, Generation, Phase, Target
from elastrain.jobstate import RegisteredMember
from elastrain.rendezvous import groups

MAX_FAULTS = 2
"""Generations in a row that a member may fail to enter by itself, and times that it may fail to send its state."""


@dataclass(frozen=True)
class View:
    """A snapshot of a job's records: all of them, and consistent, for the leader (:attr:`complete`)."""

    self_id: str
    target: Target | None = None
    members: tuple[RegisteredMember, ...] = ()
    """Members that have a key, in any order. Empty unless all records are watched."""
    complete: bool = True
    """All records are known. Else only the shared ones, and properties of members are not available."""
    leader: str | None = None
    """Id of the member that leads."""
    leader_mod_revision: int = 0
    """mod_revision of the key ``leader``."""
    generations: tuple[Generation, ...] = ()
    """The newest generations with all their members, oldest first; :attr:`generation` is the last."""
    gone: tuple[RegisteredMember, ...] = ()
    """Last records of members of those generations whose keys are gone."""
    was_adopted: frozenset[int] = frozenset()
    """Numbers of generations that were seen adopted earlier."""
    notified: Mapping[int, str] = field(default_factory=dict)
    """Numbers of generations whose members were notified that they are over, and why."""
    generation: Generation | None = None
    """The newest generation, the *base* of the next."""
    highest: int = 0
    """Greatest number of a generation ever seen: etcd may have lost its data under a running job, and numbers never
    decrease."""
    generation_mod_revision: int = 0
    """mod_revision of the key ``generation``; 0: it does not exist."""
    finished: bool = False
    """``progress.finished``, or :attr:`closed`: no further generation is formed."""
    closed: Closed | None = None
    step: int = 0
    """Greatest number of committed steps in any record."""
    loop: LoopId = NO_LOOP
    """That the job is in, by its last report."""
    saved_step: int = 0
    """``progress.checkpoint.step``; 0: no durable checkpoint was completed."""
    revision: int = 0
    """etcd's revision of this snapshot."""

    @cached_property
    def alive(self) -> dict[str, RegisteredMember]:
        """Members that have a key and no younger incarnation; oldest first.

        Only proof takes a member out: its lease has ended, by itself or by a holder's revocation; or its worker, which
        has one agent at a time, has registered again. A refused or reset connection is none: a firewall makes them too,
        and the member may commit a step meanwhile.
        """
        ordered = sorted(self.members, key=lambda m: m.create_revision)
        youngest = {m.record.worker: m.id for m in ordered}
        return {m.id: m for m in ordered if youngest[m.record.worker] == m.id}

    @cached_property
    def base_alive(self) -> tuple[RegisteredMember, ...]:
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
        """Whether a member of the newest generation saw its collectives fail, or all were notified that it is over:
        that holds even if the lost member has returned under its id."""
        number = self.generation.number if self.generation else 0
        failed = (max(m.record.broken, m.record.fault) for m in self.base_alive)
        return number in self.notified or any(n >= number for n in failed)

    @property
    def intact(self) -> bool:
        """Whether the newest generation has all its members and none of them saw it fail. True for an empty one."""
        return not self.lost and not self.broken

    def is_leaving(self, member: RegisteredMember) -> bool:
        """Whether the member leaves, by its own record or by the target."""
        wanted_out = self.target is not None and member.record.worker in self.target.leaving
        return wanted_out or member.record.phase is Phase.LEAVING or member.id in self.unfit

    @cached_property
    def unfit(self) -> frozenset[str]:
        """Ids of members that no further generation includes: they broke several by failures of their own. Not those
        that alone hold the newest state."""
        failed = frozenset(m.id for m in self.alive.values() if m.record.faults >= MAX_FAULTS)
        others = (m for m in self.alive.values() if m.id not in failed and self.holds_newest(m))
        return failed if failed and (not self.training or groups.cover(others)) else frozenset()

    @cached_property
    def mute(self) -> tuple[RegisteredMember, ...]:
        """Members that hold the newest state, stay, and cannot give it: while there are any, no member without it can
        enter."""
        holders = (m for m in self.base_alive if self.holds_newest(m) and not self.is_leaving(m))
        return tuple(m for m in holders if max(m.record.unsent, m.record.faults) >= MAX_FAULTS)

    def _may_enter(self, member: RegisteredMember) -> bool:
        return is_ready(member) and (not self.mute or self.holds_newest(member))

    @cached_property
    def newcomers(self) -> tuple[str, ...]:
        """Ids of members of the newest generation that have not received the state that others of it hold."""
        if self.generation is None or not self.training:
            return ()
        newest = max(self.taken, default=0)
        old = {i for i, number in self._adopted_by.items() if number == newest}
        received = {i for i in old if (m := self.alive.get(i)) is None or self.holds_newest(m)}
        return tuple(i for i in self.generation.ids if i not in received)

    @cached_property
    def leavers(self) -> tuple[RegisteredMember, ...]:
        """Live members of the newest generation that are leaving."""
        return tuple(m for m in self.base_alive if self.is_leaving(m))

    @cached_property
    def stayers(self) -> tuple[RegisteredMember, ...]:
        """Live members of the newest generation that can enter the next one now, in whole groups, in rank order."""
        whole = (group for group in self._groups if all(map(self._may_enter, group)))
        return tuple(m for group in whole for m in group if m.id in self._inside)

    @cached_property
    def unready(self) -> tuple[RegisteredMember, ...]:
        """Live members of the newest generation that are not leaving but cannot enter another one yet."""
        return tuple(m for m in self.base_alive if not is_ready(m) and not self.is_leaving(m))

    @cached_property
    def outsiders(self) -> tuple[RegisteredMember, ...]:
        """Live members, not leaving, that are not in the newest generation; oldest first."""
        inside = {m.id for m in self.base_alive}
        return tuple(m for m in self.alive.values() if m.id not in inside and not self.is_leaving(m))

    @cached_property
    def joiners(self) -> tuple[RegisteredMember, ...]:
        """Outsiders that are ready and complete a group of the newest generation, or are whole groups that fit under
        the target's desired size; oldest first."""
        room = self.target.desired if self.target else 0
        found: list[RegisteredMember] = []
        for group in self._groups:
            stays = any(m.id in self._inside for m in group)
            if (stays or len(group) <= room) and all(map(self._may_enter, group)):
                found += [m for m in group if m.id not in self._inside]
            room -= len(group) if stays or len(group) <= room else 0
        return tuple(found)

    @cached_property
    def _inside(self) -> frozenset[str]:
        """Ids of live members of the newest generation that are not leaving."""
        return frozenset(m.id for m in self.base_alive if not self.is_leaving(m))

    @cached_property
    def _groups(self) -> list[groups.Group]:
        """Whole groups of members that are not leaving: first those of the newest generation, in rank order."""
        inside = [m for m in self.base_alive if m.id in self._inside]
        others = sorted(filter(is_ready, self.outsiders), key=lambda m: not m.record.holds)
        newest = max(self.taken, default=0)
        holders = [m for m in (*inside, *others) if self._adopted_by.get(m.id) == newest and self.holds(m)]
        return groups.arrange(inside, others, self._trains, [m for m in holders if is_ready(m)])

    @property
    def _trains(self) -> list[groups.Group]:
        """The groups of the newest generation, without members that do not stay."""
        members = self.generation.members if self.generation else ()
        size = max((m.record.group_size for m in self.base_alive), default=1)
        chunks = (members[i : i + size] for i in range(0, len(members), size))
        return [tuple(self.alive[m.id] for m in chunk if m.id in self._inside) for chunk in chunks]

    def whole(self, members: Iterable[RegisteredMember]) -> groups.Group:
        """Those of ``members`` that are whole groups, in the order of a generation."""
        ids = {m.id for m in members}
        return tuple(m for group in self._groups if all(m.id in ids for m in group) for m in group)

    @cached_property
    def warming(self) -> tuple[RegisteredMember, ...]:
        """Outsiders that are not ready yet."""
        return tuple(m for m in self.outsiders if m.record.phase is Phase.WARMING)

    @cached_property
    def ended(self) -> bool:
        """Whether no further generation is formed."""
        return self.finished or any(m.record.phase is Phase.FINISHED for m in self.members)

    # ---- adoption: ranks adopt a generation together, so one member's record holds for all ------------------
    @cached_property
    def taken(self) -> frozenset[int]:
        """Numbers of known generations that have been adopted."""
        known = {g.number: g for g in self.generations}
        said = {
            number
            for m in (*self.members, *self.gone)
            if (number := m.record.generation) in known and known[number].member(m.id) is not None
        }
        return frozenset(said | (self.was_adopted & known.keys()))

    @cached_property
    def _adopted_by(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for generation in self.generations:
            if generation.number in self.taken:
                found.update(dict.fromkeys(generation.ids, generation.number))
        return found

    @cached_property
    def may_return(self) -> tuple[str, ...]:
        """Workers of the generation that trained last, if its live members do not hold the whole state: a lease can
        expire although its member lives. Without those that left, died or registered anew."""
        last = max((g for g in self.generations if g.number in self.taken), key=lambda g: g.number, default=None)
        if last is None or groups.cover(m for i in last.ids if (m := self.alive.get(i)) and self.holds(m)):
            return ()
        left = {m.id for m in self.gone if m.record.phase in (Phase.LEAVING, Phase.FINISHED)}
        anew = {m.record.worker for m in self.alive.values()}
        return tuple(m.worker for m in last.members if m.id not in left and m.worker not in anew)

    @cached_property
    def returning(self) -> tuple[RegisteredMember, ...]:
        """Live members that have kept the training state while their ranks start again, if no member that can enter a
        generation now holds it."""
        if groups.cover(filter(self.holds, (*self.stayers, *self.joiners))):
            return ()
        return tuple(m for m in self.warming if m.record.holds)

    @cached_property
    def unread(self) -> tuple[RegisteredMember, ...]:
        """Live members that may hold the training state, with a phase that this version does not know."""
        strange = (m for m in self.alive.values() if not isinstance(m.record.phase, Phase))
        return tuple(m for m in strange if m.record.phase == UNREADABLE or m.record.holds or self.adopted_by(m))

    @property
    def training(self) -> bool:
        """Whether live members hold the training state, because they have been in a generation.

        Where members are not watched, as far as the newest generation tells.
        """
        if self.generation is None or not self.generation.size:
            return False
        if not self.complete:
            return self.generation.number not in self.notified
        return groups.cover(m for m in self.alive.values() if self.holds(m))

    def holds(self, member: RegisteredMember) -> bool:
        """Whether the member holds the training state, or its part as a worker of a group: it has been in a
        generation, and has received all of it, or it has kept one."""
        return member.record.holds or (member.id in self._adopted_by and not member.record.learning)

    def holds_newest(self, member: RegisteredMember) -> bool:
        """The same for the state of the generation that trained last: the member has entered no other one since."""
        return self.holds(member) and self.adopted_by(member) == max(self.taken, default=0)

    @cached_property
    def keepers(self) -> tuple[RegisteredMember, ...]:
        """Groups that are leaving, at least one worker of each, and hold the newest training state, if neither stayers
        nor joiners do: they leave when these have received it."""
        newest = max(self.taken, default=0)
        if self.one_copy and newest in self.condemned:
            # The stayers need every part that is left: leavers enter one more generation, and give theirs as they
            # leave that one. Not those that have left for a later one already.
            held = (m for m in self.alive.values() if self._adopted_by.get(m.id) == newest >= m.record.generation)
            return tuple(m for m in held if self.is_leaving(m))
        if groups.cover(filter(self.holds_newest, (*self.stayers, *self.joiners))):
            return ()
        holders = (m for m in self.alive.values() if self.holds(m) and self._adopted_by.get(m.id) == newest)
        return tuple(m for group in groups.of(holders) if any(map(self.is_leaving, group)) for m in group)

    @property
    def one_copy(self) -> bool:
        """Whether all members of a generation hold one copy of the state together."""
        return any(m.record.one_copy for m in self.members)

    def adopted_by(self, member: RegisteredMember) -> int:
        """Number of the newest generation that a member has adopted; 0: none."""
        return max(member.record.generation, self._adopted_by.get(member.id, 0))

    @cached_property
    def in_force(self) -> int | None:
        """The oldest generation that still trains: the least number adopted by a live member of the newest generation
        (of an empty one: by any live member) that is neither broken for that member nor over. None: none."""
        number = self.generation.number if self.generation else 0
        empty = self.generation is not None and not self.generation.size
        members = self.alive.values() if empty else self.base_alive
        over = self.notified.keys() | self.condemned.keys()
        adopted = ((self.adopted_by(m), m.record.broken) for m in members)
        trains = [n for n, broken in adopted if n > broken and n not in over]
        return min(trains) if trains and number else None

    @property
    def adopted(self) -> bool:
        """Whether all training members have switched to the newest generation (or stopped for it, if it is empty)."""
        if self.generation is None:
            return True
        number = self.generation.number
        if not self.generation.size:
            return self.in_force is None or self.in_force >= number
        return all(self.adopted_by(m) >= number for m in self.base_alive)

    @cached_property
    def ahead(self) -> tuple[RegisteredMember, ...]:
        """Live members in a newer generation than the newest one: etcd has lost its data, and they have yet to notice
        it, and to write that generation again."""
        number = self.generation.number if self.generation else 0
        return tuple(m for m in self.alive.values() if m.record.generation > number)

    @property
    def entered(self) -> bool:
        """Whether every member of the newest generation has reported its entry itself."""
        return self.generation is None or all(m.record.generation >= self.generation.number for m in self.base_alive)

    # ---- generations that are over ----------------------------------------------------------------------------------
    @cached_property
    def condemned(self) -> dict[int, str]:
        """Known generations that are over, and why: a member was lost in it, or saw it fail."""
        found = ((g.number, self._why_over(g)) for g in self.generations)
        return {number: why for number, why in found if why}

    @cached_property
    def _reporting(self) -> tuple[RegisteredMember, ...]:
        """Live members that saw a generation fail."""
        return tuple(m for m in self.alive.values() if m.record.broken)

    def _why_over(self, generation: Generation) -> str:
        missing = generation.ids - self.alive.keys()
        if missing:
            gone = {m.id: m for m in self.gone}
            places = (generation.member(i) for i in missing if not self._left(gone.get(i), i, generation.number))
            lost = [m.worker for m in sorted((p for p in places if p), key=lambda m: m.rank_offset)]
            if lost:
                return f"{_few(lost)} gone"
        broke = {m.id for m in self._reporting if m.record.broken >= generation.number}
        failed = [m.worker for m in generation.members if m.id in broke] if broke else []
        return f"worker {failed[0]} reports a broken collective" if failed else ""

    def _left(self, last: RegisteredMember | None, member_id: str, number: int) -> bool:
        """Whether an absent member has left generation ``number`` instead of being lost: its last record shows that it
        had finished, or had stopped for a later generation. Rank 0 has finished when the job has."""
        if last is None:
            return self._adopted_by.get(member_id, 0) > number
        works = not self.finished and any(g.number == number and _is_first(g, member_id) for g in self.generations)
        return (last.record.phase is Phase.FINISHED and not works) or self.adopted_by(last) > number


def _is_first(generation: Generation, member_id: str) -> bool:
    return generation.first is not None and generation.first.id == member_id


def _few(workers: list[str]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} is"
    more = f" and {len(workers) - 3} more" if len(workers) > 3 else ""
    return f"workers {', '.join(workers[:3])}{more} are"


def is_ready(member: RegisteredMember) -> bool:
    """Whether it can connect to a next generation, and serves a store in case it comes first in it."""
    return member.record.phase is Phase.READY and member.record.store_port > 0
