"""Copies of shards in the memory of other ranks, with all ranks as threads of the test: real sockets."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from conditions import eventually
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.reshard.restore import ShardRef
from elastrain.elastic.reshard.snapshots import TIME_SHARE, Snapshots, send_seconds
from elastrain.elastic.state import transfer
from elastrain.elastic.state.digest import same_bits
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
        tensor.local.add_(1)
        take(first + 1)
        assert snapshots.pending(), "the second one takes its time"
        snapshots.wait()
        snapshots.close()

    kept = [Snapshots(most=20) for _ in range(2)]
    for first in (0, 7):
        each(lambda c, first=first: rank(c, kept[c.rank], first), connect(2))


class Live:
    """Two tensors that a rank trains, and one that is frozen; all ranks draw the same changes."""

    def __init__(self, rank: int, seed: int = 0) -> None:
        self.rank, self.random = rank, random.Random(seed)
        self.values = [torch.full((2, 3), float(rank)), torch.zeros(0, 4), torch.full((2,), rank + 0.5).bfloat16()]

    def change(self, *numbers: int) -> None:
        for number in numbers:
            self.values[number] += 1

    @property
    def tensors(self) -> list[Any]:
        return [SimpleNamespace(rows=2 * len(v), tensor=v, local=v) for v in self.values]

    def copied(self) -> list[torch.Tensor]:
        return [v.clone() for v in self.values]


def take(snapshots: Snapshots, c: Communicator, step: int, live: Live) -> None:
    snapshots.take(ShardRef(step, 2, c.rank, c.generation), live.tensors, rest={}, step_seconds=0.0)
    snapshots.wait()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tensors of each snapshot that is sent."""
    counts: list[int] = []
    send = transfer.send_tensors
    monkeypatch.setattr(transfer, "send_tensors", lambda of, *a: counts.append(len(of)) or send(of, *a))
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_kept_snapshots_hold_what_each_rank_had_whatever_has_changed_between_them(connect, each, seed) -> None:
    """Of both ranks: own rows and the predecessor's, of the newest snapshot and of the one before."""

    def rank(c: Communicator) -> None:
        snapshots, mine, other = Snapshots(most=20), Live(c.rank, seed), Live(1 - c.rank, seed)
        snapshots.enter(c, places=[0, 1], partners=[1, 0], step=0, counts=None)
        states: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        for step in range(1, 9):
            take(snapshots, c, step, mine)
            states.append((mine.copied(), other.copied()))
            for held, (own, theirs) in zip(snapshots.held, states[-len(snapshots.held) :], strict=True):
                snapshot = snapshots.of(held.copy)
                assert all(map(torch.equal, snapshot.own, own)) and all(map(torch.equal, snapshot.theirs, theirs)), step
            if mine.random.random() < 0.8:
                snapshots.committed(step, copying=0)
            numbers = [n for n in range(3) if mine.random.random() < 0.4]
            other.random = mine.random
            mine.change(*numbers)
            other.change(*numbers)
        snapshots.close()

    each(rank, connect(2))


def test_what_has_not_changed_since_the_snapshot_that_counts_is_neither_copied_nor_sent(connect, each, sent) -> None:
    def rank(c: Communicator) -> None:
        snapshots, live = Snapshots(most=20), Live(c.rank)
        snapshots.enter(c, places=[0, 1], partners=[1, 0], step=0, counts=None)
        take(snapshots, c, 1, live)
        take(snapshots, c, 2, live)  # none counts yet
        snapshots.committed(3, copying=0)
        live.change(0)
        take(snapshots, c, 4, live)
        old, new = (snapshots.of(held.copy) for held in snapshots.held)
        assert [a is b for a, b in zip(old.own, new.own, strict=True)] == [False, True, True]
        assert [a is b for a, b in zip(old.theirs, new.theirs, strict=True)] == [False, True, True]
        snapshots.close()

    each(rank, connect(2))
    assert sorted(sent) == [1] * 2 + [3] * 4


def test_a_snapshot_of_another_generation_is_shared_with_none(connect, each, sent) -> None:
    def rank(c: Communicator, snapshots: Snapshots, live: Live, counts: Any) -> Any:
        snapshots.enter(c, places=[0, 1], partners=[1, 0], step=1, counts=counts)
        take(snapshots, c, 1, live)
        snapshots.committed(2, copying=0)
        snapshots.close()
        return snapshots.held[-1].copy

    ranks = [(Snapshots(most=20), Live(number)) for number in range(2)]
    counts = [None, None]
    for _ in range(2):
        counts = each(lambda c, counts=counts: rank(c, *ranks[c.rank], counts[c.rank]), connect(2))
    assert sent == [3] * 4


@pytest.mark.parametrize("other", [{"step": 1}, {"by": 7}, {"shards": 3}, {"predecessor": 5}])
def test_all_of_a_shard_is_sent_to_a_partner_that_holds_another_snapshot(connect, each, sent, other) -> None:
    """Rank 0 holds other rows of its predecessor than rank 1 supposes, under their own name."""

    def rank(c: Communicator) -> None:
        snapshots, live, theirs = Snapshots(most=20), Live(c.rank), Live(1 - c.rank)
        snapshots.enter(c, places=[0, 1], partners=[1, 0], step=0, counts=None)
        take(snapshots, c, 3, live)
        snapshots.committed(4, copying=0)
        if c.rank == 0:
            (base,) = snapshots._kept
            snapshots._counts = other.get("step", base.held.step)
            base.held, base.theirs = replace(base.held, **other), [t + 1 for t in base.theirs]
        live.change(0)
        theirs.change(0)
        take(snapshots, c, 5, live)
        newest = snapshots.of(snapshots.held[-1].copy)
        assert all(map(torch.equal, newest.theirs, theirs.values)), "merged with what the sender did not mean"
        snapshots.close()

    each(rank, connect(2))
    own_differs = "predecessor" not in other
    assert sorted(sent) == ([3, 3, 3, 3] if own_differs else [1, 3, 3, 3])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.ones(2, 3).t().contiguous().t(), torch.ones(2, 3), True),
        (torch.zeros(0, 3), torch.zeros(0, 3), True),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
    ],
)
def test_contents_are_compared_to_the_bit(one: torch.Tensor, other: torch.Tensor, same: bool) -> None:
    assert same_bits(one, other) is same
