"""With ``shards: all``: a rank's place among the others, and its shard on the way from one generation to the next.

Ranks that leave give their shards to the others over the connections of the old generation, before they go. Joiners
receive theirs over those of the new one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from elastrain.api.records import Generation
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.membership.entry import Entry, EntryRow
from elastrain.elastic.membership.session import Session
from elastrain.elastic.membership.world import World
from elastrain.elastic.reshard.move import Change
from elastrain.elastic.reshard.origin import Origin
from elastrain.elastic.state import capture, digest
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.strategies.fully_sharded import FullySharded

log = structlog.get_logger(__name__)


class OneCopyWorld(World):
    """As :class:`World`, for ranks that hold one copy of the model together."""

    def __init__(
        self, session: Session, strategy: FullySharded, tracked: dict[str, Stateful], keeper: CheckpointKeeper
    ) -> None:
        self._shards = strategy
        super().__init__(session, strategy, tracked, keeper)

    @property
    def _has_state(self) -> bool:
        return self._held and self._shards.holds

    def _hand_over(self, communicator: Communicator | None) -> bool:
        old = self.communicator
        assert old is not None
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

    def _synchronise(self, communicator: Communicator) -> Entry:
        entry = super()._synchronise(communicator)
        origin = entry.origin
        assert origin is not None
        if not origin.held[communicator.rank]:
            self._shards.lose()  # its own is replaced
        places = origin.places()
        change = Change(origin.held, origin.shards, places)
        if change.changes:
            self._move(change, communicator)
        self._shards.places = places
        return entry

    def _move(self, change: Change, communicator: Communicator) -> None:
        """Raises ``GenerationBroken``; then this rank may have lost its shard."""
        self._check_alike(communicator)
        sent = self._shards.move(change, communicator, self._tracked)
        log.info(
            "shards moved", generation=communicator.generation, before=change.shards, after=change.size, bytes_sent=sent
        )

    def _check_alike(self, communicator: Communicator) -> None:
        from elastrain.elastic.reshard.remesh import sharded_tensors

        described = [(t.name, tuple(t.tensor.shape), t.tensor.dtype) for t in sharded_tensors(self._tracked)]
        numbers = communicator.all_gather_ints([digest.of_value(described)])
        with communicator.guard():
            if different := [r for r, number in enumerate(numbers) if number != numbers[0]]:
                raise RanksDiverged(
                    f"rank 0 and rank {different[0]} have different sharded parameters, or their optimizers keep "
                    "different tensors of them: all ranks must build the same model"
                )

    def entry_row(self, generation: Generation) -> EntryRow:
        shards, shard = self._shards.placement
        return replace(super().entry_row(generation), shards=shards, shard=shard)

    def _tree(self) -> dict[str, Any]:
        return super()._tree() | {"tracked": capture.capture(self._tracked, emptied=True)}
