"""A generation that begins with the connections of its tree, as with NCCL; the ranks are threads of the test."""

import threading
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from conditions import eventually
from elastrain.elastic.comm import tcp_allreduce, tree
from elastrain.elastic.comm.channel import Channels
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.comm.subgroup import Subgroup

DEEP = 12
"""Ranks: 1 passes on between 0 and 9 to 11."""
LOST = pytest.mark.parametrize("lost", [0, 1, 5, 11], ids=["root", "between", "leaf of the root", "leaf below"])
MANY = tcp_allreduce.SPARSE_BYTES // 8 + 1
"""Numbers of a sum that goes between all pairs."""


def add(c: Communicator, count: int) -> torch.Tensor:
    """The sum of ``count`` numbers of each rank."""
    values = torch.full((count,), float(c.rank), dtype=torch.float64)
    c.sum_bucket(values).wait()
    return values


def kill(c: Communicator) -> None:
    """As the kernel does: all connections end, without a cause."""
    c._channels.shut()


def peers(ranks: list[Communicator]) -> list[list[int]]:
    return [list(c.mesh.peers) for c in ranks]


def test_ranks_are_connected_to_their_neighbours_only_and_sum_what_a_step_and_its_entry_need(connect, each) -> None:
    ranks = connect(DEEP, sparse=True)
    assert {tuple(values.tolist()) for values in each(partial(add, count=4), ranks)} == {(66.0,) * 4}
    rows = [bytes([rank]) * 8000 for rank in range(DEEP)]
    assert each(lambda c: c.all_gather_bytes(rows[c.rank]), ranks) == [rows] * DEEP
    assert peers(ranks) == [sorted(tree.neighbours(rank, DEEP)) for rank in range(DEEP)]


def test_all_pairs_are_connected_by_the_first_sum_that_travels_between_them(connect, each) -> None:
    ranks = connect(DEEP, sparse=True)
    for _ in range(2):
        assert all((values == 66).all() for values in each(partial(add, count=MANY), ranks))
    assert peers(ranks) == [tree.others(c.rank, c.world_size) for c in ranks]
    assert each(lambda c: c.all_gather_ints([c.rank]), ranks) == [[[r] for r in range(DEEP)]] * DEEP
    assert not any(c.broken for c in ranks)


def test_an_exchange_of_all_ranks_connects_them(connect, each) -> None:
    def swap(c: Communicator) -> list[float]:
        got = torch.zeros(c.world_size)
        with c.exchange(4) as mesh:
            for peer in tree.others(c.rank, c.world_size):
                mesh.send(peer, torch.tensor([float(c.rank)]))
                mesh.receive(peer, got[peer : peer + 1])
            mesh.run()
        return got.tolist()

    ranks = connect(DEEP, sparse=True)
    assert each(swap, ranks) == [[float(r) if r != c.rank else 0.0 for r in range(DEEP)] for c in ranks]


def test_a_subgroup_connects_its_ranks_and_no_others(connect, each) -> None:
    def gather(c: Communicator) -> list[int]:
        ranks = list(range(c.rank % 3, DEEP, 3))
        out = torch.zeros(len(ranks), dtype=torch.int64)
        Subgroup(c, ranks).all_gather(out, torch.tensor([c.rank]))
        return out.tolist()

    ranks = connect(DEEP, sparse=True)
    rows = [list(range(rank % 3, DEEP, 3)) for rank in range(DEEP)]
    assert each(gather, ranks) == rows
    wanted = [{*tree.neighbours(rank, DEEP), *rows[rank]} - {rank} for rank in range(DEEP)]
    assert [set(of) for of in peers(ranks)] == wanted


@LOST
def test_every_rank_hears_of_a_loss_while_none_sums_anything(lost, connect) -> None:
    ranks = connect(DEEP, sparse=True)
    kill(ranks[lost])
    for c in ranks:
        eventually(lambda c=c: not c.mesh.begin() or c.mesh.end(), what=f"rank {c.rank} hears of the loss")
        assert c.over is None, "a peer may leave after the last step that both share"


@LOST
def test_every_rank_that_waits_for_its_device_is_freed_by_a_loss(lost, connect) -> None:
    ranks = connect(DEEP, sparse=True)
    for c in ranks:
        c.devices.spins()
    kill(ranks[lost])
    for c in ranks[:lost] + ranks[lost + 1 :]:
        eventually(lambda c=c: c.broken, what=f"rank {c.rank} gives the generation up")


@LOST
def test_a_loss_breaks_the_generation_on_all_ranks_that_wait_for_the_lost_one_to_connect(lost, connect, each) -> None:
    ranks = connect(DEEP, sparse=True)
    survivors = ranks[:lost] + ranks[lost + 1 :]
    threading.Timer(0.05, kill, [ranks[lost]]).start()
    each(partial(add, count=MANY), survivors)
    assert all(c.broken for c in survivors)


@pytest.mark.parametrize("lost", [0, 5, 11])
def test_no_rank_waits_for_one_that_is_lost_while_all_pairs_connect(lost, connect, each, monkeypatch) -> None:
    ranks = connect(DEEP, sparse=True)

    def dies_in(way):
        def die(self: Channels, *arguments):
            if self._identity.rank == lost:
                self.shut()
            return way(self, *arguments)

        return die

    monkeypatch.setattr(Channels, "connect", dies_in(Channels.connect))
    monkeypatch.setattr(Channels, "accept", dies_in(Channels.accept))
    each(partial(add, count=MANY), ranks)
    assert all(c.broken for c in ranks)


def test_connecting_all_pairs_ends_if_the_generation_is_called_off(connect, each) -> None:
    ranks = connect(3, sparse=True)
    for c in ranks[:2]:
        threading.Timer(0.05, c.call_off, ["a member is lost"]).start()
    each(partial(add, count=MANY), ranks[:2])
    assert [c.broken for c in ranks[:2]] == ["a member is lost"] * 2


def test_ranks_that_do_different_things_are_told_so_before_they_connect(connect, each) -> None:
    def differ(c: Communicator) -> None:
        with pytest.raises(GenerationBroken):
            if c.rank == 1:
                c.all_gather_ints([1], Kind.BARRIER)
            else:
                add(c, MANY)
                c.all_gather_ints([1], Kind.BARRIER)

    ranks = connect(3, sparse=True)
    each(differ, ranks)
    assert any("rank 1 left its loop" in (c.diverged or "") for c in ranks)


@examples(200)
@given(data=st.data(), world=st.integers(2, 600), fan=st.integers(1, 16))
def test_a_loss_reaches_every_rank_hop_by_hop_whichever_ranks_are_lost(data, world, fan) -> None:
    """Each rank whose neighbour has left leaves: no rank is cut off, and the way is no longer than the tree is wide."""
    left = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=5))
    for _ in range(2 * tree.depth(world, fan)):
        left |= {peer for rank in left for peer in tree.neighbours(rank, world, fan)}
    assert left == set(range(world))
