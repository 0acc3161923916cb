"""The records of one job as etcd last reported them: the one mirror that agents, local mode and the operator keep.

Pure: changes of keys go in, decoded records are attributes. The key of a record that cannot be read is in
:attr:`JobState.unreadable`, so that a reader can refuse to act on what it does not know. Such a member still exists,
with an unknown phase; any other such record is missing here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeVar

from elastrain.api.base import Record, Unreadable
from elastrain.api.keys import JobKeys
from elastrain.api.records import (
    Closed,
    Ended,
    Generation,
    GenerationMember,
    Issued,
    Leader,
    Member,
    Progress,
    Target,
    roster,
)
from elastrain.etcd import Batch, KeyValue, Put

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class RegisteredMember:
    """A member's record with its place in the order of registration."""

    record: Member
    create_revision: int
    lease: int = 0
    """The lease that holds its key. It belongs to one process of one agent, and never returns; 0: none."""

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, slots=True)
class Leadership:
    """The key ``leader``: which member leads, under which lease."""

    record: Leader | None
    """None: the record cannot be read."""
    lease: int
    mod_revision: int


class JobState:
    """The decoded records of one job. Not thread-safe: one thread applies changes and reads."""

    def __init__(self, keys: JobKeys) -> None:
        self.keys = keys
        self.members: dict[str, RegisteredMember] = {}
        """Members that have a key, by id."""
        self.target: Target | None = None
        self.target_mod_revision = 0
        """0: the key does not exist."""
        self.header: Generation | None = None
        """The newest generation as its key has it, a large one without members (``api.records.roster``)."""
        self.generation_mod_revision = 0
        """Of the key ``generation``; 0: it does not exist."""
        self.highest_number = 0
        """Greatest number of a generation in any record so far. etcd may lose its data under a running job, and numbers
        never go back."""
        self.leadership: Leadership | None = None
        self.ended: dict[int, str] = {}
        """Numbers of generations whose members were told that they cannot go on, and why."""
        self.progress: Progress | None = None
        self.closed: Closed | None = None
        self.issued: Issued | None = None
        self.owner: bytes | None = None
        """Name of the cluster whose operator serves the job."""
        self.unreadable: set[str] = set()
        """Keys whose records could not be decoded: damaged, or of a newer version."""
        self.parts: dict[int, dict[str, tuple[GenerationMember, ...]]] = {}
        """Members of the last few generations: number -> key -> members in that part."""
        self._whole: Generation | None = None  # the newest generation with the members of all its parts

    def apply(self, batch: Batch) -> None:
        """Take over the changes of a batch, in order."""
        for event in batch.events:
            if isinstance(event, Put):
                self.put(event.kv.key, event.kv)
            else:
                self.put(event.key, None)

    def put(self, key: str, kv: KeyValue | None) -> None:
        """Take over one key; None: it was deleted."""
        keys = self.keys
        self.unreadable.discard(key)
        if key.startswith(keys.members):
            self._put_member(key.removeprefix(keys.members), kv)
        elif key.startswith(keys.rosters):
            self._put_part(key, kv)
        elif key == keys.target:
            self.target = self._decode(Target, kv)
            self.target_mod_revision = kv.mod_revision if kv else 0
            self._note_number(self.target.above if self.target else 0)
        elif key == keys.generation:
            self._put_header(kv)
        elif key == keys.leader:
            leader = self._decode(Leader, kv)
            self.leadership = Leadership(leader, kv.lease, kv.mod_revision) if kv else None
        elif key == keys.ended:
            ended = self._decode(Ended, kv)
            if ended is not None:
                self._note_number(*ended.numbers)
                self._note_ended(ended.numbers, ended.why)
        elif key == keys.progress:
            self.progress = self._decode(Progress, kv)
            self._note_number(self.progress.generation if self.progress else 0)
        elif key == keys.closed:
            self.closed = self._decode(Closed, kv)
        elif key == keys.issued:
            self.issued = self._decode(Issued, kv)
        elif key == keys.owner:
            self.owner = kv.value if kv else None

    @property
    def is_empty(self) -> bool:
        """The job has no records, or none that is kept here."""
        records = (self.target, self.header, self.leadership, self.progress, self.closed, self.issued, self.owner)
        return not any((self.members, self.parts, self.unreadable, *records))

    @property
    def finished(self) -> bool:
        """Training is complete or the job was closed: no generation is formed any more."""
        return self.closed is not None or (self.progress is not None and self.progress.finished)

    @property
    def generation(self) -> Generation | None:
        """The newest generation with all its members; without them while some parts of a large one are missing."""
        header = self.header
        if header is None or header.roster is None:
            return header
        if self._whole is None:
            if len(self.parts.get(header.number, ())) < header.roster.parts:
                return header
            self._whole = roster.whole(header, self.members_of(header.number))
        return self._whole

    def members_of(self, number: int) -> tuple[GenerationMember, ...]:
        """Members of one of the last few generations, in rank order; empty if they are not known."""
        return roster.join(roster.Part(members=part) for part in self.parts.get(number, {}).values())

    def _put_member(self, member_id: str, kv: KeyValue | None) -> None:
        member, before = self._decode(Member, kv), self.members.pop(member_id, None)
        if kv is not None:
            known = before.record.unread() if before else Member.unknown(member_id)
            self.members[member_id] = RegisteredMember(member or known, kv.create_revision, kv.lease)

    def _put_header(self, kv: KeyValue | None) -> None:
        self.header, self._whole = self._decode(Generation, kv), None
        self.generation_mod_revision = kv.mod_revision if kv else 0
        if self.header is not None:
            self._note_number(self.header.number)
            self._note_ended(self.header.ended, self.header.why)

    def _put_part(self, key: str, kv: KeyValue | None) -> None:
        try:
            number = int(key.removeprefix(self.keys.rosters).partition("/")[0])
        except ValueError:
            return  # not of a generation
        part = self._decode(roster.Part, kv)
        if part is not None:
            self._note_number(number)
            self.parts.setdefault(number, {})[key] = part.members
        elif number in self.parts:
            self.parts[number].pop(key, None)
            if not self.parts[number]:
                del self.parts[number]

    def _note_number(self, *numbers: int) -> None:
        self.highest_number = max(self.highest_number, *numbers)

    def _note_ended(self, numbers: tuple[int, ...], why: str) -> None:
        self.ended.update(dict.fromkeys(numbers, why))
        if self.header is not None:
            oldest = self.header.number - roster.KEPT
            self.ended = {number: said for number, said in self.ended.items() if number > oldest}

    def _decode(self, kind: type[R], kv: KeyValue | None) -> R | None:
        record = decode_record(kind, kv)
        if record is None and kv is not None:
            self.unreadable.add(kv.key)
        return record


def decode_record(kind: type[R], kv: KeyValue | None) -> R | None:
    """The record that ``kv`` holds; None without a key, or (logged) if it cannot be read."""
    if kv is None:
        return None
    try:
        return kind.decode(kv.value)
    except Unreadable as error:
        log.error("%s is not a valid %s and is ignored: %s", kv.key, kind.__name__, error)
        return None
