"""Builds the :class:`~elastrain.rendezvous.view.View` of one member from the records of a job.

In addition to the records (:class:`elastrain.jobstate.JobState`) it keeps what they do not contain: members whose keys
vanished around an outage of etcd, last records of lost members, and adopted generations.
"""

from __future__ import annotations

from elastrain.api.keys import JobKeys
from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.records import Generation, Leader, Member, Phase, Target, roster
from elastrain.etcd import Batch, KeyValue, Put, Range
from elastrain.jobstate import JobState, RegisteredMember, decode_record
from elastrain.rendezvous.view import View


class ViewBuilder:
    """Not thread-safe: one thread applies batches and asks for views."""

    def __init__(self, keys: JobKeys) -> None:
        self.state = JobState(keys)
        self.complete = False
        """All keys of the job are watched; else the shared ones (:func:`own_part`)."""
        self.missing: dict[str, RegisteredMember] = {}
        """Members whose keys vanished around an outage of etcd: perhaps they could not renew their leases."""
        self.generation: Generation | None = None
        """The newest generation; a large one with all members if all keys are watched, else with the place that
        :meth:`found` reported."""
        self.revision = 0
        self._unsaved: Generation | None = None
        self._obeyed: Target | None = None
        self._gone: dict[str, RegisteredMember] = {}
        self._generations: dict[int, Generation] = {}
        self._adopted: frozenset[int] = frozenset()
        self._shown: View | None = None
        """The last view; None: what it was made of has changed."""

    @property
    def leader(self) -> Leader | None:
        """The record of the member that leads."""
        return self.state.leadership.record if self.state.leadership else None

    @property
    def unsaved(self) -> Generation | None:
        """The newest generation, if etcd has lost it and no member has written it again."""
        header, lost = self.state.header, self._unsaved
        return lost if lost is not None and (header is None or header.number < lost.number) else None

    @property
    def target(self) -> Target | None:
        """The target. While :attr:`unsaved` is set and no newer one was written: the last one before the loss, since
        that of a restored snapshot may order what is long past, such as a stop."""
        return self._obeyed if self._obeyed is not None and self.unsaved is not None else self.state.target

    @property
    def unsaved_target(self) -> Target | None:
        """The target to be written again with :attr:`unsaved`; None: etcd has it, or the operator has written one."""
        return self._obeyed if self._obeyed is not None and self._obeyed != self.state.target else None

    # ---- from etcd -------------------------------------------------------------------------------------------------
    def apply(self, batch: Batch, *, keep_missing: bool = False) -> None:
        """Apply the changes of a batch.

        With ``keep_missing``, members whose keys were deleted stay in the view until :meth:`drop_missing`.
        """
        self._shown = None
        known, obeyed = self.generation, self.state.target
        if batch.snapshot:
            self.complete = batch.ranges == everything(self.state.keys)
        for event in batch.events:
            if isinstance(event, Put):
                self.state.put(event.kv.key, event.kv)
                if not batch.snapshot and event.kv.key == self.state.keys.target:
                    self._obeyed = None
                continue
            member = self.state.members.get(event.key.removeprefix(self.state.keys.members))
            if member is not None:
                (self.missing if keep_missing else self._gone)[member.id] = member
            self.state.put(event.key, None)
        self.missing = {i: m for i, m in self.missing.items() if i not in self.state.members}
        if batch.snapshot and known is not None and known.roster is None and self._has_lost(known, batch.revision):
            self._unsaved = known
            self._obeyed = obeyed if self._is_former(obeyed) else None
        self.revision = batch.revision
        if not self.complete:
            self.missing.clear()
            self._gone.clear()
        self._update_generations()

    def _has_lost(self, known: Generation, revision: int) -> bool:
        """Whether a list at ``revision`` shows that etcd has lost records. A restored snapshot may have a higher
        revision than before (``etcdutl snapshot restore --bump-revision``), but numbers never go back otherwise."""
        header = self.state.header
        if revision < self.revision:
            return True
        return self.state.target is not None if header is None else header.number < known.number

    def _is_former(self, obeyed: Target | None) -> bool:
        """Whether the listed target is older than the last one, ``obeyed``, or gone. One written after the loss
        has a higher floor of numbers."""
        listed = self.state.target
        return obeyed is not None and (listed is None or listed.above <= obeyed.above)

    def drop_missing(self) -> None:
        """Count missing members as lost: they had time to renew their leases."""
        if self.missing:
            self._gone |= self.missing
            self.missing.clear()
            self._shown = None

    def expect(self, generation: Generation) -> None:
        """After an outage: members of ``generation`` without a key first count as missing, not as lost."""
        for m in generation.members:
            if m.id not in self.state.members and m.id not in self._gone and m.id not in self.missing:
                known = m.model_dump(include=set(Member.model_fields))
                part = m.part.model_dump() if m.part else {}
                record = Member(**known, **part, phase=Phase.READY, generation=generation.number)
                self.missing[m.id], self._shown = RegisteredMember(record, 0), None

    # ---- generations -----------------------------------------------------------------------------------------------
    def _update_generations(self) -> None:
        header = self.state.header
        for number in self.state.parts.keys() - self._generations.keys():
            if header is None or number != header.number:
                self._generations[number] = Generation(
                    number=number, members=self.state.members_of(number), reason="Earlier", leader=""
                )
        newest = self.state.generation
        if newest is None or newest.roster is None:
            self.generation = newest
            if newest is not None:
                self._generations[newest.number] = newest
        if header is not None:
            oldest = header.number - roster.KEPT
            self._generations = {n: g for n, g in self._generations.items() if n > oldest}

    def part_to_read(self, self_id: str) -> str | None:
        """The key with this member's place in the newest generation; None if the place is known."""
        header, shown = self.state.header, self.generation
        if header is None or header.roster is None or (shown is not None and shown.number == header.number):
            return None
        return self.state.keys.roster(header.number, roster.part_of(self_id, header.roster.parts))

    def found(self, self_id: str, key: str, kv: KeyValue | None) -> None:
        """The content of that key; None: a newer generation has replaced it."""
        header, part = self.state.header, decode_record(roster.Part, kv)
        if part is not None and header is not None and self.part_to_read(self_id) == key:
            self.generation = roster.with_place(header, next((m for m in part.members if m.id == self_id), None))
            self._shown = None

    # ---- for decisions ---------------------------------------------------------------------------------------------
    def view(self, self_id: str) -> View:
        """A snapshot from the view of ``self_id``: the last one again if nothing has changed since."""
        if self._shown is not None and self._shown.self_id == self_id:
            return self._shown
        state = self.state
        members = (*state.members.values(), *self.missing.values()) if self.complete else ()
        generations = tuple(self._generations[n] for n in sorted(self._generations)) if self.complete else ()
        if self._gone:
            places = {i for g in generations for i in g.ids}
            self._gone = {i: m for i, m in self._gone.items() if i in places and i not in state.members}
        trained_in = (state.progress.generation,) if state.progress else ()
        view = View(
            self_id=self_id,
            target=self.target,
            members=members,
            complete=self.complete,
            leader=self.leader.member if self.leader else None,
            leader_mod_revision=state.leadership.mod_revision if state.leadership else 0,
            generation=self.generation,
            highest=state.highest_number,
            generation_mod_revision=state.generation_mod_revision,
            generations=generations,
            gone=tuple(self._gone.values()),
            was_adopted=self._adopted.union(trained_in),
            notified=dict(state.ended),
            finished=state.finished,
            closed=state.closed,
            step=self._step(members),
            loop=LoopId(state.progress.total_steps or 0, state.progress.nth_loop) if state.progress else NO_LOOP,
            saved_step=state.progress.checkpoint.step if state.progress and state.progress.checkpoint else 0,
            revision=self.revision,
        )
        self._adopted, self._shown = view.taken, view
        return view

    def _step(self, members: tuple[RegisteredMember, ...]) -> int:
        progress = self.state.progress
        known = [progress.step if progress else 0, self.generation.step if self.generation else 0]
        return max(known + [m.record.step for m in members])


# -- the keys that a member watches: all of its job if it leads or the job is small, else the shared ones and its own --
def everything(keys: JobKeys) -> tuple[Range, ...]:
    """The leader's scope: one range, so that all records are read at one revision."""
    return (Range.prefix(keys.prefix),)


def own_part(keys: JobKeys, member_id: str) -> tuple[Range, ...]:
    """The scope of all other members: without the records of other members.

    ``closed``, ``generation`` and the keys below it are neighbours, so one watch covers them. The member's own key is
    watched for deletions only. Progress is written every second and read once, for the number of committed steps.
    """
    return (
        Range(keys.closed, end=keys.generation + "0"),
        Range(keys.target),
        Range(keys.member(member_id), deletes_only=True),
        Range(keys.progress, listed_only=True),
    )
