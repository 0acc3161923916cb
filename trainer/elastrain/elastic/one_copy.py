"""With ``shards: all``: a rank's shard on the way from one generation to the next, and the snapshots of it.

Ranks that leave give their shards to the others over the connections of the old generation, before they go. Joiners
receive theirs over those of the new one.
"""

from __future__ import annotations

from dataclasses import replace

import structlog
import torch

from elastrain.api.records import Generation
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.group.copies import Resume, WholeCopies
from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.group.position import Position
from elastrain.elastic.group.rank_state import RankState
from elastrain.elastic.group.shell import Session
from elastrain.elastic.reshard.move import Change, Source
from elastrain.elastic.reshard.remesh import ShardedTensor, sharded_tensors
from elastrain.elastic.reshard.restore import NOTHING, Home, RestorePlan, ShardRef
from elastrain.elastic.reshard.snapshots import Snapshots
from elastrain.elastic.state import capture, digest
from elastrain.elastic.strategies.sharding.fully_sharded import FullySharded

log = structlog.get_logger(__name__)

NEEDED_SECONDS = 30.0
"""Bound of waiting for the next generation after one that broke as this rank was to leave: until the members know of a
loss, and their leader has decided."""


class OneCopy(WholeCopies):
    """All ranks hold one copy of the model together: its shards move when the ranks change."""

    apart = True

    def __init__(
        self,
        session: Session,
        strategy: FullySharded,
        state: RankState,
        position: Position,
    ) -> None:
        super().__init__(session)
        self._shards, self._state, self._position = strategy, state, position
        self._snapshots = Snapshots(session.welcome.settings.max_redone_steps)
        self._loop_began = 0
        """Committed steps when the script's present loop began."""
        strategy.copies = self._snapshots.pending

    @property
    def holds(self) -> bool:
        return self._shards.holds

    @property
    def placement(self) -> tuple[int, int]:
        return self._shards.placement

    # -- snapshots ---------------------------------------------------------------------------------------------------
    def begin_loop(self) -> None:
        self._loop_began = self._state.step  # no rank can use a snapshot of before: its script does not go back
        self._take()
        self._snapshots.wait()

    def committed(self, copying: int, *, switches: bool) -> None:
        if self._snapshots.committed(self._state.step, copying) and not switches:
            self._take()

    def complete(self) -> None:
        self._snapshots.wait()  # a rank that ends after the loop would cut it off

    def _take(self) -> None:
        state = self._state
        held = ShardRef(state.step, *self._shards.placement, state.by)
        rest = state.tree(emptied=True)
        self._snapshots.take(held, sharded_tensors(state.tracked), rest, state.reporter.step_seconds)

    # -- out of a generation -----------------------------------------------------------------------------------------
    def hand_over(self, old: Communicator | None, *, stays: bool) -> None:
        if old is None:
            raise GenerationBroken(0, "a rank was lost before the shards moved")
        self._snapshots.close()
        self._give(old, stays=stays)

    def may_be_needed(self, without: Generation, *, complete: bool) -> bool:
        if self._session.outside or not (complete or self._snapshots.held):
            return False
        log.info("another generation may need this rank's shard", than=without.number)
        return self._session.hears_of_a_generation(after=without.number, within=NEEDED_SECONDS)

    def _give(self, communicator: Communicator, *, stays: bool) -> None:
        staying = [bool(stay) for (stay,) in communicator.all_gather_ints([int(stays)])]
        if all(staying) or not any(staying):
            return
        shards, places = self._shards.placement[0], self._shards.places
        stayers = [r for r, stay in enumerate(staying) if stay]
        held = tuple((places[r],) for r in stayers)
        new = dict(zip(stayers, RestorePlan(self._state.step, shards, held).places(), strict=True))
        self._move(Change([(p,) for p in places], shards, [new.get(r) for r in range(len(staying))]), communicator)

    # -- into a generation -------------------------------------------------------------------------------------------
    def contribution(self, row: EntryRow, generation: Generation) -> EntryRow:
        first, second, *_ = *self._snapshots.held, NOTHING, NOTHING
        welcome = self._session.welcome
        me = generation.member(welcome.member)
        assert me is not None, "a rank enters generations that include it"
        return replace(row, snapshots=(first, second), home=Home(digest.of_value(welcome.node), me.rank_offset))

    def begin(self, entry: Entry, communicator: Communicator, resume: Resume) -> Entry:
        restore = entry.restore
        assert restore is not None
        if entry.cold:
            return self._begin_anew(entry, restore, communicator, resume)
        if restore.snapshot:
            self._roll_back(entry.reached, restore, communicator)
        return entry

    def _begin_anew(self, entry: Entry, restore: RestorePlan, communicator: Communicator, resume: Resume) -> Entry:
        """No rank holds state: each loads its shard from the newest checkpoint, or training begins."""
        self._place(restore, communicator)
        placed = resume(replace(entry, shards=[*self._shards.places]), communicator)
        if self._state.step:  # all have loaded what is not sharded, too
            return replace(placed, shards=entry.shards)
        self._state.by = communicator.generation
        return entry

    def _roll_back(self, reached: int, restore: RestorePlan, communicator: Communicator) -> None:
        """The live shards make no whole: continue from a snapshot."""
        position = self._position
        if restore.step < self._loop_began or position.has_left(restore.step) or position.between:
            position.start_anew(communicator, f"the script has left the loop of step {restore.step}")
        log.warning("steps are repeated from a snapshot", reached=reached, step=restore.step)
        if restore.held[communicator.rank]:
            rescales = self._state.reporter.rescales
            self._state.load(capture.copied(self._snapshots.of(restore.copy).rest))
            self._state.reporter.rescales = rescales

    def enter(self, entry: Entry, communicator: Communicator) -> Entry:
        restore = entry.restore
        assert restore is not None
        if not entry.cold:
            self._place(restore, communicator)
        self._snapshots.enter(communicator, self._shards.places, entry.partners, self._state.step, restore.kept)
        self._take()
        return replace(entry, shards=[*self._shards.places])

    # -- shards ------------------------------------------------------------------------------------------------------
    def _place(self, restore: RestorePlan, communicator: Communicator) -> None:
        """Bring each rank's shard of ``restore`` to it, from the nearest. Raises ``GenerationBroken``."""
        if not restore.held[communicator.rank]:
            self._shards.lose()  # its own is replaced
        places = restore.places()
        change = Change(restore.held, restore.shards, places)
        if restore.snapshot:
            self._move(change, communicator, self._from_snapshot(restore))
        elif change.changes:
            self._move(change, communicator)
        self._shards.places = places

    def _from_snapshot(self, restore: RestorePlan) -> Source:
        def rows(number: int, tensor: ShardedTensor, shard: int) -> torch.Tensor:
            return self._snapshots.of(restore.copy).rows(number, shard)

        return rows

    def _move(self, change: Change, communicator: Communicator, source: Source | None = None) -> None:
        """Raises ``GenerationBroken``; then this rank may have lost its shard."""
        self._check_alike(communicator)
        sent = self._shards.move(change, communicator, self._state.tracked, source)
        log.info(
            "shards moved", generation=communicator.generation, before=change.shards, after=change.size, bytes_sent=sent
        )

    def _check_alike(self, communicator: Communicator) -> None:
        described = [(t.name, tuple(t.tensor.shape), t.tensor.dtype) for t in sharded_tensors(self._state.tracked)]
        numbers = communicator.all_gather_ints([digest.of_value(described)])
        with communicator.guard():
            if different := [r for r, number in enumerate(numbers) if number != numbers[0]]:
                raise RanksDiverged(
                    f"rank 0 and rank {different[0]} have different sharded parameters, or their optimizers keep "
                    "different tensors of them: all ranks must build the same model"
                )
