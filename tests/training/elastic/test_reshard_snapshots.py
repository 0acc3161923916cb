"""Copies of shards in the memory of other ranks, with all ranks as threads of the test: real sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.reshard.restore import ShardRef
from elastrain.elastic.reshard.snapshots import Snapshots
from elastrain.elastic.state.parts import bounds


def test_each_rank_holds_the_rows_of_its_predecessor_if_some_ranks_have_none(connect, each) -> None:
    whole = torch.arange(10.0).reshape(2, 5)

    def rows_of(shard: int) -> torch.Tensor:
        start, stop = bounds(2, 3, shard)
        return whole[start:stop]

    def rank(c: Communicator) -> tuple[bool, torch.Tensor]:
        snapshots = Snapshots(most=2)
        snapshots.enter(c, places=[0, 1, 2], partners=[1, 2, 0], step=0, counts=None)
        tensor = cast("Any", SimpleNamespace(rows=2, tensor=whole, local=rows_of(c.rank)))
        snapshots.take(ShardRef(1, 3, c.rank), [tensor], rest={}, step_seconds=0.01)
        snapshots.wait()
        (held,) = snapshots.held
        return snapshots.pending(), snapshots.of(held.copy).rows(0, held.predecessor)

    for number, (pending, rows) in enumerate(each(rank, connect(3))):
        assert not pending
        assert torch.equal(rows, rows_of((number - 1) % 3))
