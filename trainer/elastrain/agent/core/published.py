"""The member record: what it says, as last written to etcd, and when it must be written again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from elastrain.agent.core import restart
from elastrain.agent.core.checkup import Checkup
from elastrain.agent.core.events import JobSnapshot, Publish
from elastrain.agent.core.places import Places
from elastrain.agent.core.rank import Rank
from elastrain.api.records import Generation, GenerationMember, Health, Phase, Progress
from elastrain.api.settings import Shards
from elastrain.rendezvous.election import FIRST, place_in
from elastrain.rendezvous.view import MAX_FAULTS

REPORT_LATER_SECONDS = 1.0
"""Seconds for which a member leaves the report of a broken generation to that generation's first members."""


def record_of(ranks: Sequence[Rank], phase: Phase, checkup: Checkup, shards: Shards, *, kept: bool = False) -> Publish:
    """The record of a member with these ranks. ``shards``: as of the job's settings. ``kept``: the memory of its node
    has the state of its last processes."""
    health, message, local_rank = checkup.health, checkup.message, checkup.verdict.rank
    if health is Health.OK and (why := why_unfit(ranks)):
        health, message = Health.UNFIT, why
    return Publish(
        phase=phase,
        generation=min(r.adopted for r in ranks),
        step=max(r.step for r in ranks),
        broken=max(r.broken for r in ranks),
        fault=max(r.fault for r in ranks),
        faults=max(r.faults for r in ranks),
        unsent=max(r.unsent for r in ranks),
        learning=any(r.learning for r in ranks),
        holds=restart.hold_all(ranks, shards) or kept,
        store_port=ranks[0].store_port,
        health=health,
        health_message=message,
        health_rank=local_rank,
    )


def final_progress(report: Progress | None, generation: Generation, step: int) -> Progress:
    """The last record of progress, from the last ``report`` of rank 0, if there is one."""
    base = report or Progress(
        generation=generation.number, world_size=generation.world_size, members=generation.size, step=step
    )
    return base.model_copy(update={"finished": True, "step": step})


def why_unfit(ranks: Sequence[Rank]) -> str:
    """Why this member cannot enter generations, or cannot give its state in them, by own failures; empty: it can."""
    rank = next((r for r in ranks if max(r.faults, r.unsent) >= MAX_FAULTS), None)
    if rank is None:
        return ""
    what = "send its state" if rank.unsent >= MAX_FAULTS else "connect to its peers"
    return f"local rank {rank.local_rank} cannot {what}: {rank.complaint}"


@dataclass(slots=True)
class PublishedRecord:
    """One incarnation of a member. Times are the agent's monotonic seconds."""

    record: Publish = field(default_factory=Publish)
    """As last written."""
    broke: int = 0
    """The greatest generation that failed on a rank."""
    broke_at: float = 0.0
    """When it failed."""

    def note(self, broken: int, now: float) -> None:
        """Generation ``broken`` failed on a rank."""
        if broken > self.broke:
            self.broke, self.broke_at = broken, now

    def report_broken_at(self, seen: JobSnapshot | None, places: Places, adopted: int) -> float | None:
        """When the record must report a broken generation; None: none is broken, or the leader has already ended it.

        It breaks on all ranks, but the leader needs one report: O(1) writes instead of O(N). ``adopted``: the oldest
        generation that a rank is in.
        """
        number, me = self.broke, places.me
        if seen is None or me is None or number <= self.record.broken:
            return None
        if number in seen.ended or number < adopted:
            return None
        place = place_in(places.generation(number), me)
        return self.broke_at if place is None or place < FIRST else self.broke_at + REPORT_LATER_SECONDS

    def next(
        self, record: Publish, place: GenerationMember | None, report_broken_at: float | None, now: float
    ) -> Publish | None:
        """What to write of ``record`` now, and what to keep ready: if etcd loses its data, the member registers again
        as what it is then."""
        if self._must_be_written(record, place, report_broken_at, now):
            self.record = record
            return record
        if record.generation != self.record.generation:
            self.record = replace(record, broken=self.record.broken)
            return replace(record, later=True)
        return None

    def _must_be_written(
        self, record: Publish, place: GenerationMember | None, report_broken_at: float | None, now: float
    ) -> bool:
        """Whether to write ``record`` now.

        Three changes wait for the next write: the step (``progress`` has it, too), an adopted generation (the member
        with rank 0 reports it for all its members), and a broken generation that the leader has already ended.
        ``place``: the member's in ``record.generation``. ``report_broken_at``: when a broken generation must be
        written.
        """
        old = self.record
        adopted = record.generation != old.generation and (place is None or place.rank_offset == 0)
        changed = record != old and replace(record, step=old.step, generation=old.generation, broken=old.broken) != old
        return changed or adopted or (report_broken_at is not None and now >= report_broken_at)
