"""With ``shards: all``: a rank's place among the others, and its shard on the way from one generation to the next.

Ranks that leave give their shards to the others over the connections of the old generation, before they go. Joiners
receive theirs over those of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog
import torch

from elastrain.api.records import Generation
from elastrain.data.order import Order
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.membership.entry import Entry, EntryRow
from elastrain.elastic.membership.session import Session
from elastrain.elastic.membership.world import World
from elastrain.elastic.reshard.move import Change, Source
from elastrain.elastic.reshard.origin import NOTHING, Held, Origin
from elastrain.elastic.reshard.partners import Home
from elastrain.elastic.reshard.remesh import ShardedTensor, sharded_tensors
from elastrain.elastic.reshard.snapshots import Snapshots
from elastrain.elastic.state import capture, digest
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.strategies.fully_sharded import FullySharded

log = structlog.get_logger(__name__)

NEEDED_SECONDS = 30.0
"""Bound of waiting for the next generation after one that broke as this rank was to leave: until the members know of a
loss, and their leader has decided."""


class OneCopyWorld(World):
    """As :class:`World`, for ranks that hold one copy of the model together."""

    moves_shards = True

    def __init__(
        self, session: Session, strategy: FullySharded, tracked: dict[str, Stateful], keeper: CheckpointKeeper
    ) -> None:
        self._shards = strategy
        self._snapshots = Snapshots(session.welcome.settings.max_redone_steps)
        self._due = False
        """Whether all ranks take a snapshot of the step that is being committed."""
        self._loop_began = 0
        """Committed steps when the script's present loop began."""
        strategy.copies = self._snapshots.pending
        super().__init__(session, strategy, tracked, keeper)

    # -- snapshots ---------------------------------------------------------------------------------------------------
    def begin_loop(self, order: Order, end: int) -> bool:
        begins = super().begin_loop(order, end)
        if begins and self.communicator is not None:
            self._loop_began = self.step  # no rank can use a snapshot of before: its script does not go back
            self._take()
            self._snapshots.wait()
        return begins

    def commit(self, loss: float, by: int, agreed: int | None, *, learning: bool = False, span: int = 1) -> None:
        super().commit(loss, by, agreed, learning=learning, span=span)
        assert self.model is not None
        self._due = self._snapshots.committed(self.step, self.model.copying) and agreed is None

    def committed(self, saves: int = 0) -> None:
        super().committed(saves)
        if self._due:
            self._take()

    def complete(self) -> None:
        super().complete()
        self._snapshots.wait()  # a rank that ends after the loop would cut it off

    def _take(self) -> None:
        held = Held(self.step, *self._shards.placement, self.position.ballot.by)
        self._snapshots.take(held, sharded_tensors(self._tracked), self._tree(), self._reporter.step_seconds)

    # -- changes of generation ---------------------------------------------------------------------------------------
    def stop_for(self, generation: Generation) -> None:
        """As in :class:`World`; but a rank that leaves after a loss waits for the others to need its part."""
        lost = self.communicator is None and bool(self._has_state or self._snapshots.held)
        if lost and generation.size and not self._session.outside:
            log.info("another generation may need this rank's shard", than=generation.number)
            if self._session.hears_of_a_generation(after=generation.number, within=NEEDED_SECONDS):
                return
        super().stop_for(generation)

    @property
    def _has_state(self) -> bool:
        return self._held and self._shards.holds

    @property
    def _placement(self) -> tuple[int, int]:
        return self._shards.placement

    def _hand_over(self, communicator: Communicator | None) -> bool:
        old = self.communicator
        assert old is not None
        self._snapshots.close()
        try:
            self._give(old, stays=communicator is not None)
        except GenerationBroken as e:
            for broken in filter(None, (old, communicator)):
                self.give_up(broken, e.cause)
            return False
        return True

    def _give(self, communicator: Communicator, *, stays: bool) -> None:
        staying = [bool(stay) for (stay,) in communicator.all_gather_ints([int(stays)])]
        if all(staying) or not any(staying):
            return
        shards, places = self._shards.placement[0], self._shards.places
        stayers = [r for r, stay in enumerate(staying) if stay]
        held = tuple((places[r],) for r in stayers)
        new = dict(zip(stayers, Origin(self.step, shards, held).places(), strict=True))
        self._move(Change([(p,) for p in places], shards, [new.get(r) for r in range(len(staying))]), communicator)

    def _begin(self, entry: Entry, communicator: Communicator) -> Entry:
        origin = entry.origin
        assert origin is not None
        if entry.cold:
            return self._begin_anew(entry, origin, communicator)
        if not origin.snapshot:
            return entry
        if origin.step < self._loop_began or self.position.has_left(origin.step) or self._between:
            self.position.start_anew(communicator, f"the script has left the loop of step {origin.step}")
        log.warning("steps are repeated from a snapshot", reached=entry.reached, step=origin.step)
        if origin.held[communicator.rank]:
            rescales = self._reporter.rescales
            self._load(capture.copied(self._snapshots.of(origin.copy).rest))
            self._reporter.rescales = rescales
        return entry

    def _begin_anew(self, entry: Entry, origin: Origin, communicator: Communicator) -> Entry:
        """No rank holds state: each loads its shard from the newest checkpoint, or training begins.

        A rank loads from the memory of its own node only, and ranks may have another order than those that saved: each
        takes the shard that is there.
        """
        self._place(origin, communicator, self.saving.shards_in_memory(communicator))
        placed = super()._begin(replace(entry, shards=[*self._shards.places]), communicator)
        if self.step:  # all have loaded what is not sharded, too
            return replace(placed, shards=entry.shards)
        self.position.ballot.by = communicator.generation
        return entry

    def _synchronise(self, communicator: Communicator) -> Entry:
        entry = super()._synchronise(communicator)
        origin = entry.origin
        assert origin is not None
        if not entry.cold:
            self._place(origin, communicator)
        self._snapshots.enter(communicator, self._shards.places, entry.partners, self.step, origin.kept)
        self._take()
        return replace(entry, shards=[*self._shards.places])

    def _place(self, origin: Origin, communicator: Communicator, places: Sequence[int] | None = None) -> None:
        """Bring each rank's shard of ``origin`` to it: of ``places``, or the nearest. Raises ``GenerationBroken``."""
        if not origin.held[communicator.rank]:
            self._shards.lose()  # its own is replaced
        places = places or origin.places()
        change = Change(origin.held, origin.shards, places)
        if origin.snapshot:
            self._move(change, communicator, self._from_snapshot(origin))
        elif change.changes:
            self._move(change, communicator)
        self._shards.places = places

    def _from_snapshot(self, origin: Origin) -> Source:
        def rows(number: int, tensor: ShardedTensor, shard: int) -> torch.Tensor:
            return self._snapshots.of(origin.copy).rows(number, shard)

        return rows

    def _move(self, change: Change, communicator: Communicator, source: Source | None = None) -> None:
        """Raises ``GenerationBroken``; then this rank may have lost its shard."""
        self._check_alike(communicator)
        sent = self._shards.move(change, communicator, self._tracked, source)
        log.info(
            "shards moved", generation=communicator.generation, before=change.shards, after=change.size, bytes_sent=sent
        )

    def _check_alike(self, communicator: Communicator) -> None:
        described = [(t.name, tuple(t.tensor.shape), t.tensor.dtype) for t in sharded_tensors(self._tracked)]
        numbers = communicator.all_gather_ints([digest.of_value(described)])
        with communicator.guard():
            if different := [r for r, number in enumerate(numbers) if number != numbers[0]]:
                raise RanksDiverged(
                    f"rank 0 and rank {different[0]} have different sharded parameters, or their optimizers keep "
                    "different tensors of them: all ranks must build the same model"
                )

    def entry_row(self, generation: Generation) -> EntryRow:
        first, second, *_ = *self._snapshots.held, NOTHING, NOTHING
        welcome = self._session.welcome
        me = generation.member(welcome.member)
        assert me is not None, "a rank enters generations that include it"
        home = Home(digest.of_value(welcome.node), me.rank_offset)
        return replace(super().entry_row(generation), snapshots=(first, second), home=home)
