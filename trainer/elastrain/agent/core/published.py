"""What the others know of a member by its record, and when they must be told more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastrain.agent.core.events import Publish
from elastrain.api.records import GenerationMember


@dataclass(slots=True)
class Told:
    """Of one incarnation of a member. Times are the agent's monotonic seconds."""

    record: Publish = field(default_factory=Publish)
    """As last written."""
    broke: int = 0
    """The greatest generation that a rank saw fail,"""
    broke_at: float = 0.0
    """and when."""

    def note(self, broken: int, now: float) -> None:
        """A rank saw generation ``broken`` fail."""
        if broken > self.broke:
            self.broke, self.broke_at = broken, now

    def is_news(self, record: Publish, place: GenerationMember | None, say_broken_at: float | None, now: float) -> bool:
        """Whether to write it now. What others know, or do not need, travels with the next change: the step (it is in
        progress, too), that a generation was adopted (the member with rank 0 says so for all who are in it), that one
        broke (where the leader knows).

        ``place``: the member's in ``record.generation``. ``say_broken_at``: when it must be written that one broke.
        """
        old = self.record
        adopted = record.generation != old.generation and (place is None or place.rank_offset == 0)
        rest = replace(record, step=old.step, generation=old.generation, broken=old.broken)
        return rest != old or adopted or (say_broken_at is not None and now >= say_broken_at)
