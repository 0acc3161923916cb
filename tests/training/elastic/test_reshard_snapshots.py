"""Copies of shards in the memory of other ranks, with all ranks as threads of the test: real sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from conditions import eventually
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.reshard.restore import ShardRef
from elastrain.elastic.reshard.snapshots import TIME_SHARE, Snapshots, send_seconds
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


@pytest.mark.parametrize("step_seconds", [None, 0.0, 0.1, 30.0])
@pytest.mark.parametrize("every", [1, 10])
def test_a_snapshot_is_sent_at_full_speed_if_no_other_of_the_generation_counts(
    every: int, step_seconds: float | None
) -> None:
    assert send_seconds(every, step_seconds, covered=False) == 0
    assert send_seconds(every, step_seconds, covered=True) == TIME_SHARE * every * (step_seconds or 0)


def test_snapshots_are_paced_only_after_one_of_each_generation_counts(connect, each) -> None:
    whole = torch.arange(64.0).reshape(4, 16)

    def rank(c: Communicator, snapshots: Snapshots, first: int) -> None:
        def take(step: int) -> None:
            snapshots.take(ShardRef(step, 2, c.rank, c.generation), [tensor], rest={}, step_seconds=1000.0)

        tensor = cast("Any", SimpleNamespace(rows=4, tensor=whole, local=whole[2 * c.rank : 2 * c.rank + 2]))
        snapshots.enter(c, places=[0, 1], partners=[1, 0], step=first, counts=None)
        take(first)
        eventually(lambda: not snapshots.pending(), within=10, what="the first snapshot to arrive at full speed")
        assert not snapshots.committed(first + 1, copying=0)
        take(first + 1)
        assert snapshots.pending(), "the second one takes its time"
        snapshots.wait()
        snapshots.close()

    kept = [Snapshots(most=20) for _ in range(2)]
    for first in (0, 7):
        each(lambda c, first=first: rank(c, kept[c.rank], first), connect(2))
