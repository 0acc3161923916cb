"""What its owner has not been told yet of what a member sees."""

from __future__ import annotations

from collections.abc import Iterator

from elastrain.api import roster
from elastrain.api.records import Generation, Member
from elastrain.rendezvous.events import GenerationEnded, JobEnded, MembershipEvent, NewGeneration, TargetChanged
from elastrain.rendezvous.view import View


class News:
    """Turns one view after the other into events, each of them once. Does no I/O; for one thread."""

    def __init__(self) -> None:
        self._generations: dict[int, Generation] = {}
        self._over: set[int] = set()
        self._ended = False

    def generation(self, number: int) -> Generation | None:
        """One of the last few that the owner was told of, as this member sees it."""
        return self._generations.get(number)

    def of(self, old: View, view: View, record: Member) -> Iterator[MembershipEvent]:
        """What ``view`` holds that ``old``, the one before it, did not; ``record`` is the member's own."""
        if view.target is not None and view.target != old.target:
            yield TargetChanged(view.target)
        newest = view.generation
        if newest is not None and (old.generation is None or newest.number > old.generation.number):
            newest = roster.seen_by(newest, record.id)
            self._keep(newest)
            yield NewGeneration(newest)
        for number, why in view.told.items():
            mine = self._generations.get(number)
            if mine is not None and mine.member(record.id) is not None and number not in self._over:
                self._over.add(number)
                yield GenerationEnded(number, why)
        if view.ended and not self._ended:
            self._ended = True
            yield JobEnded(_why_ended(view))

    def _keep(self, newest: Generation) -> None:
        self._generations[newest.number] = newest
        self._generations = {n: g for n, g in self._generations.items() if n > newest.number - roster.KEPT}
        self._over &= self._generations.keys()


def _why_ended(view: View) -> str:
    closed = view.closed
    if closed is not None:
        return f"closed by {closed.member}: {closed.reason} {closed.message}".rstrip()
    if view.finished:
        return "the job has finished"
    return "a member has finished training"
