"""The member record as last written to etcd, and when it must be written again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastrain.agent.core.events import Publish
from elastrain.api.records import GenerationMember


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

    def must_be_written(
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
