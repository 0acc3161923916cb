"""The records of one job as read from etcd, kept up to date by a watch; it makes the :class:`View`."""

from __future__ import annotations

import logging
from typing import TypeVar

from pydantic import ValidationError

from elastrain.api import roster
from elastrain.api.keys import JobKeys
from elastrain.api.records import (
    Closed,
    Ended,
    Generation,
    GenerationMember,
    Leader,
    Member,
    Phase,
    Progress,
    Record,
    Target,
)
from elastrain.etcd import Batch, KeyValue, Put
from elastrain.rendezvous.scope import everything
from elastrain.rendezvous.view import Seen, View

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


class Mirror:
    """Not thread-safe: one thread applies batches and asks for views."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self.complete = False
        """All of the job is watched; else what concerns everybody (:mod:`~elastrain.rendezvous.scope`)."""
        self.members: dict[str, Seen] = {}
        self.missing: dict[str, Seen] = {}
        """Members whose keys vanished around an outage of etcd: they may only have had no chance to renew."""
        self.target: Target | None = None
        self.generation: Generation | None = None
        """The newest one; of a large one all members if all is watched, else the place that :meth:`found` told."""
        self.generation_mod_revision = 0
        self.leader: Leader | None = None
        self.leader_lease = 0
        self.leader_mod_revision = 0
        self.told: dict[int, str] = {}
        self.progress: Progress | None = None
        self.closed: Closed | None = None
        self.revision = 0
        self._header: Generation | None = None
        self._highest = 0
        self._gone: dict[str, Seen] = {}
        self._rosters: dict[int, dict[str, tuple[GenerationMember, ...]]] = {}
        self._generations: dict[int, Generation] = {}
        self._adopted: frozenset[int] = frozenset()

    # ---- from etcd -------------------------------------------------------------------------------------------------
    def apply(self, batch: Batch, *, keep_missing: bool = False) -> None:
        """Take the batch's changes over. A record that cannot be read counts as absent, and is logged.

        With ``keep_missing``, members whose keys were deleted stay in the view until :meth:`drop_missing`.
        """
        if batch.snapshot:
            self.complete = batch.ranges == everything(self._keys)
        for event in batch.events:
            if isinstance(event, Put):
                self._put(event.kv.key, event.kv)
                continue
            member = self.members.get(event.key.removeprefix(self._keys.members))
            if member is not None:
                (self.missing if keep_missing else self._gone)[member.id] = member
            self._put(event.key, None)
        self.revision = batch.revision
        if not self.complete:
            self.missing.clear()
            self._gone.clear()
        self._show()

    def drop_missing(self) -> None:
        """The missing ones have had their chance."""
        self._gone |= self.missing
        self.missing.clear()

    def expect(self, generation: Generation) -> None:
        """After an outage: members of ``generation`` without a key count as missing, for now, not as lost."""
        for m in generation.members:
            if m.id not in self.members and m.id not in self._gone:
                record = Member(
                    id=m.id, worker=m.worker, address=m.address, store_port=m.store_port, slots=m.slots,
                    phase=Phase.READY, generation=generation.number,
                )  # fmt: skip
                self.missing.setdefault(m.id, Seen(record, 0))

    def _put(self, key: str, kv: KeyValue | None) -> None:
        keys = self._keys
        if key.startswith(keys.members):
            member = _decode(Member, kv)
            if member is None or kv is None:
                self.members.pop(key.removeprefix(keys.members), None)
            else:
                self.members[member.id] = Seen(member, kv.create_revision)
                self.missing.pop(member.id, None)
        elif key.startswith(keys.rosters):
            self._put_part(key, kv)
        elif key == keys.target:
            self.target = _decode(Target, kv)
        elif key == keys.generation:
            self._header = _decode(Generation, kv)
            self.generation_mod_revision = kv.mod_revision if kv else 0
            if self._header is not None:
                self._hear_of(self._header.number)
                self.told.update(dict.fromkeys(self._header.ended, self._header.why))
        elif key == keys.leader:
            self.leader = _decode(Leader, kv)
            self.leader_lease, self.leader_mod_revision = (kv.lease, kv.mod_revision) if kv else (0, 0)
        elif key == keys.ended:
            ended = _decode(Ended, kv)
            if ended is not None:
                self._hear_of(*ended.numbers)
                self.told.update(dict.fromkeys(ended.numbers, ended.why))
        elif key == keys.progress:
            self.progress = _decode(Progress, kv)
            if self.progress is not None:
                self._hear_of(self.progress.generation)
        elif key == keys.closed:
            self.closed = _decode(Closed, kv)

    def _hear_of(self, *numbers: int) -> None:
        """No later generation has one of these numbers, whichever record it was that named them."""
        self._highest = max(self._highest, *numbers)

    def _put_part(self, key: str, kv: KeyValue | None) -> None:
        number = int(key.removeprefix(self._keys.rosters).partition("/")[0])
        part = _decode(roster.Part, kv)
        if part is None:  # what is known of the generation stays: etcd may have lost its data while it trains
            self._rosters.pop(number, None)
        else:
            self._hear_of(number)
            self._rosters.setdefault(number, {})[key] = part.members

    # ---- generations -----------------------------------------------------------------------------------------------
    def _show(self) -> None:
        header = self._header
        for number in self._rosters.keys() - self._generations.keys():
            if header is None or number != header.number:
                self._generations[number] = Generation(
                    number=number, members=self._members_of(number), reason="Earlier", leader=""
                )
        if header is None or header.roster is None:
            self.generation = header
        elif len(self._rosters.get(header.number, ())) == header.roster.parts and not self._is_whole(header.number):
            self.generation = roster.whole(header, self._members_of(header.number))
        if self.generation is not None and self.generation.roster is None:
            self._generations[self.generation.number] = self.generation
        if header is not None:
            oldest = header.number - roster.KEPT
            self.told = {n: why for n, why in self.told.items() if n > oldest}
            self._generations = {n: g for n, g in self._generations.items() if n > oldest}

    def _is_whole(self, number: int) -> bool:
        return self.generation is not None and self.generation.number == number and self.generation.roster is None

    def _members_of(self, number: int) -> tuple[GenerationMember, ...]:
        return roster.join(roster.Part(members=part) for part in self._rosters[number].values())

    def part_to_read(self, self_id: str) -> str | None:
        """The key that says where this member is in the newest generation, if that is not known."""
        header, shown = self._header, self.generation
        if header is None or header.roster is None or (shown is not None and shown.number == header.number):
            return None
        return self._keys.roster(header.number, roster.part_of(self_id, header.roster.parts))

    def found(self, self_id: str, key: str, kv: KeyValue | None) -> None:
        """What that key held; None: it is gone, for a newer generation has come."""
        header, part = self._header, _decode(roster.Part, kv)
        if part is not None and header is not None and self.part_to_read(self_id) == key:
            self.generation = roster.with_place(header, next((m for m in part.members if m.id == self_id), None))

    # ---- for decisions ---------------------------------------------------------------------------------------------
    def view(self, self_id: str, suspects: frozenset[str] = frozenset(), unsure: frozenset[str] = frozenset()) -> View:
        """A snapshot, as ``self_id`` sees it."""
        members = (*self.members.values(), *self.missing.values()) if self.complete else ()
        generations = tuple(self._generations[n] for n in sorted(self._generations)) if self.complete else ()
        if self._gone:
            places = {i for g in generations for i in g.ids}
            self._gone = {i: m for i, m in self._gone.items() if i in places and i not in self.members}
        said = (self.progress.generation,) if self.progress else ()
        view = View(
            self_id=self_id,
            target=self.target,
            members=members,
            complete=self.complete,
            leader=self.leader.member if self.leader and self.leader.member not in suspects else None,
            leader_mod_revision=self.leader_mod_revision,
            generation=self.generation,
            highest=self._highest,
            generation_mod_revision=self.generation_mod_revision,
            generations=generations,
            gone=tuple(self._gone.values()),
            was_adopted=self._adopted.union(said),
            told=dict(self.told),
            finished=self.closed is not None or (self.progress is not None and self.progress.finished),
            closed=self.closed,
            suspects=suspects,
            unsure=unsure,
            step=self._step(members),
            revision=self.revision,
        )
        self._adopted = view.taken
        return view

    def _step(self, members: tuple[Seen, ...]) -> int:
        known = [self.progress.step if self.progress else 0, self.generation.step if self.generation else 0]
        return max(known + [m.record.step for m in members])


def _decode(kind: type[R], kv: KeyValue | None) -> R | None:
    if kv is None:
        return None
    try:
        return kind.decode(kv.value)
    except ValidationError as error:
        log.error("%s is not a valid %s, it is ignored: %s", kv.key, kind.__name__, error)
        return None
