"""With which ranks this one saves, and resumes: alone, since replicas are equal, or with all that hold shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from elastrain.api.shape import Shape
from elastrain.data.share import Place
from elastrain.elastic.checkpoint import ALONE, CheckpointKeeper, Cut, Grid, Ranks, Writers
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.group.entry import Entry
from elastrain.elastic.state import parts
from elastrain.elastic.state.capture import Stateful


class Saving:
    """For the training thread."""

    def __init__(
        self,
        keeper: CheckpointKeeper,
        tracked: Mapping[str, Stateful],
        tree: Callable[[], Any],
        *,
        together: bool,
        shape: Shape,
    ) -> None:
        """``tree()``: this rank's state. ``together``: all ranks write each checkpoint. ``shape``: of a group; empty:
        all ranks are one, or each is."""
        self._keeper, self._tracked, self._tree, self._together = keeper, tracked, tree, together
        self._shape = shape
        self._shards: Sequence[int] = [0]
        self._place = Place(0, 0, 1)

    def enter(self, shards: Sequence[int], place: Place) -> None:
        """A generation begins. ``shards``: by rank, the part of the model that it holds."""
        self._shards, self._place = shards, place
        (self._keeper.forget if place.rank else self._keeper.take_over)()

    def vote(self, step: int) -> int:
        """This rank's vote on a checkpoint after ``step`` committed steps, which all ranks write together."""
        return self._keeper.vote(step, leads=self._place.rank == 0) if self._together else 0

    def after_step(self, votes: int, step: int, *, holds: bool) -> None:
        """Begin to save if it is time. ``votes``: of all ranks. ``holds``: this rank has the whole state."""
        number = self._place.generation
        if self._together:
            self._keeper.after_vote(votes, step, number, self._tree, self._writers(self._attempt(step)))
        elif holds and not self._place.rank:
            self._keeper.after_step(step, number, self._tree)

    def save_now(self, step: int, communicator: Communicator | None) -> bool:
        """Save durably, and return when it is done or has failed. Returns whether there is a result to report.

        ``communicator``: of a healthy generation, whose ranks all do so; None: it is not known which are left. In a
        healthy generation of replicas rank 0 saves. After a loss the ranks cannot tell which of them is first, and
        writing the same step twice is harmless.
        """
        if communicator is not None and self._place.rank and not self._together:
            return False
        attempt, saved = self._attempt(step), self._keeper.saved_together(step, self._place.generation)
        if communicator is not None and saved is not None:  # they know alone what became of their parts
            try:
                if communicator.all_gather_ints([int(saved)])[0][0]:
                    return True
                attempt += "/again"
            except GenerationBroken:
                communicator = None
        writers = self._writers(attempt)
        if communicator is None and self._together:
            writers = writers.of_one_group(attempt)
        return self._keeper.save_now(step, self._place.generation, self._tree, writers)

    def keep(self, step: int) -> bool:
        """Keep the state for the next process, since this one starts again. Returns whether it is there."""
        writers = self._writers("").for_itself() if self._together else ALONE
        return self._keeper.keep(step, self._place.generation, self._tree, writers)

    def take_kept(self, shards: int, shard: int, load: Callable[[Any], None]) -> bool:
        """Load, by ``load(tree)``, what the process before has kept, before the first generation of this one.

        ``shard`` of ``shards`` is this rank's. Returns whether there was anything.
        """
        first = self._place.generation == 0
        tree = self._keeper.kept.load(self._cut(shard, Shape.flat(shards))) if first else None
        if tree is not None:
            load(tree)
        return tree is not None

    def resume(
        self, entry: Entry, communicator: Communicator, *, load: Callable[[Any], None], partial_state: str
    ) -> Entry:
        """No rank holds state: continue from the newest checkpoint, or begin with the state of the first rank.

        Returns the entry by which the others receive the state. Raises ``GenerationBroken``, and ``RuntimeError`` if
        the job must do neither (:mod:`elastrain.elastic.checkpoint.rules`).
        """
        shards, rank = entry.shards, communicator.rank
        sources = self._keeper.resume(
            load,
            saved_step=entry.saved_step,
            reached=entry.reached,
            partial_state=partial_state,
            newest=entry.back if entry.back >= 0 else None,
            ranks=Ranks(rank, shards, partial(communicator.all_gather_bytes, kind=Kind.ENTRY)),
            cut=self._cut(shards[rank], Shape.flat(max(shards) + 1)),
        )
        return replace(entry, sources=sources, receivers=[r for r in range(len(shards)) if r not in sources])

    def _cut(self, shard: int, flat: Shape) -> Cut:
        """``flat``: of a group, unless the job names its dimensions."""
        return Cut(Grid(shard, self._shape_of(flat)), partial(parts.dims_of, self._tracked))

    def _writers(self, attempt: str) -> Writers:
        flat = Shape.flat(max(self._shards) + 1)
        shape = self._shape_of(flat)
        return Writers.of(self._shards, self._place.rank, attempt, shape) if self._together else ALONE

    def _shape_of(self, flat: Shape) -> Shape:
        return self._shape if self._shape.dimensions else flat

    def _attempt(self, step: int) -> str:
        return f"{self._place.generation}/{step}"
