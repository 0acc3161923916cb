"""Stock process groups over some ranks of a generation, with the ranks as threads of the test: gloo, real sockets."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from conditions import eventually
from elastrain.elastic import torch_private
from elastrain.elastic.comm.backend import Backend
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock import groups as stock
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock.groups import Breaker, StockGroup
from elastrain.elastic.comm.stock.nccl import IdStore
from elastrain.elastic.strategies.sharding.fsdp import _Stock

PROMPTLY = 5.0
"""Seconds; gloo's own bound is 30 minutes."""
CPU = torch.device("cpu")


def form(c: Communicator, *, neighbours: bool = True) -> StockGroup:
    first = c.rank - c.rank % 2
    return stock.form(c, range(first, first + 2) if neighbours else range(c.world_size), CPU, Backend.GLOO)


def add(group: dist.ProcessGroup, value: float) -> list[float]:
    tensor = torch.full((3,), value)
    group.allreduce([tensor]).wait()
    return tensor.tolist()


def test_neighbours_are_connected_to_each_other_alone(connect, each) -> None:
    sums = each(lambda c: add(form(c).group, float(c.rank)), connect(4))
    assert sums == [[1.0] * 3] * 2 + [[5.0] * 3] * 2


WRONG = {
    "allreduce": ([torch.zeros(2), torch.zeros(3)],),
    "_allgather_base": (torch.zeros(5), torch.zeros(2)),
    "_reduce_scatter_base": (torch.zeros(2), torch.zeros(5)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_the_scripts_error_and_not_the_loss_of_a_peer(name, connect, each) -> None:
    """Else the group would form anew for ever, and make the same call."""

    def call(c: Communicator) -> list[float]:
        carrier = _Stock(form(c), c, CPU)
        with pytest.raises(RuntimeError):  # PeerLost is none
            carrier.run(name, WRONG[name])
        tensor = torch.ones(3)
        carrier.run("allreduce", ([tensor],))  # the group is whole
        carrier.close()
        return tensor.tolist()

    assert each(call, connect(2)) == [[2.0] * 3] * 2


@pytest.mark.parametrize("name", ["allreduce", "send"])
def test_a_collective_of_a_group_that_a_peer_has_left_is_the_loss_of_a_peer(name, connect, each) -> None:
    def call(carrier: _Stock, peer: int) -> None:
        carrier.abort("the test")
        with pytest.raises(PeerLost, match="Connection closed by peer"):
            carrier.run(name, ([torch.ones(3)],) if name == "allreduce" else ([torch.ones(3)], peer, 0))
        carrier.close()

    ranks = connect(2)
    connected = each(lambda c: _Stock(form(c), c, CPU), ranks)  # both, before one of them ends it
    each(lambda c: call(connected[c.rank], 1 - c.rank), ranks)


def test_an_abort_ends_the_collective_of_a_rank_whose_peer_does_not_come_and_a_new_group_serves(connect, each) -> None:
    def lose(c: Communicator) -> tuple[float, list[float]]:
        group, began = form(c, neighbours=False), 0.0
        if c.rank == 0:  # rank 1 stays out, as a frozen process does
            timer = threading.Timer(0.1, group.abort, ["the test"])
            timer.start()
            work, began = group.group.allreduce([torch.ones(1 << 20)]), time.monotonic()
            with pytest.raises(RuntimeError, match="Connection closed by peer"):
                work.wait()
        spent = time.monotonic() - began if began else 0.0
        c.all_gather_ints([c.rank])  # rank 1 ends its connections only now
        group.close()
        return spent, add(form(c, neighbours=False).group, 1.0)

    ends = each(lose, connect(2))
    assert all(spent < PROMPTLY and again == [2.0] * 3 for spent, again in ends), ends


def test_ended_groups_leave_no_descriptors_behind(connect, each) -> None:
    def cycle(c: Communicator) -> None:
        for _ in range(8):
            group = form(c, neighbours=False)
            add(group.group, 1.0)
            c.all_gather_ints([c.rank])
            group.close()

    communicators = connect(2)
    each(cycle, communicators)
    before = len(list(Path("/proc/self/fd").iterdir()))
    each(cycle, communicators)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_nccl_connects_neighbours_as_it_connects_all_ranks(connect, each, monkeypatch) -> None:
    """A stand-in: gloo in NCCL's place, which tells the ranks' order and their ends, and nothing of devices."""
    connecting = torch_private.gloo_backend("127.0.0.1", timedelta(seconds=30))
    monkeypatch.setattr(nccl, "open_backend", lambda store, rank, size, _device: connecting(store, rank, size))
    monkeypatch.setattr(stock, "IdStore", ReadByAll)

    def train(c: Communicator) -> tuple[list[float], bool]:
        first = c.rank - c.rank % 2
        group = stock.form(c, range(first, first + 2), CPU, Backend.NCCL)
        sums = add(group.group, float(c.rank))
        c.all_gather_ints([c.rank])
        group.abort("the test")
        group.close()
        return sums, c.broken is None

    ends = each(train, connect(4))
    assert ends == [([1.0] * 3, True)] * 2 + [([5.0] * 3, True)] * 2


class ReadByAll(IdStore):
    """NCCL's rank 0 reads nothing; gloo's does."""

    def __init__(self, *arguments: Any, root_reads: bool) -> None:
        assert not root_reads
        super().__init__(*arguments, root_reads=True)


def test_a_peer_that_ends_before_its_connection_is_found_is_a_lost_peer_and_a_new_group_serves(
    connect, each, monkeypatch
) -> None:
    """Else the script of a survivor would fail."""
    connected, ended = threading.Barrier(2, timeout=PROMPTLY), threading.Barrier(2, timeout=PROMPTLY)

    def then_rank_1_ends(published: list[bytes], least: int) -> Breaker:
        connected.wait()
        if threading.current_thread().name == "rank 1":
            Breaker(published, least).shut()
            eventually(lambda: not list(stock._connections(published)), PROMPTLY)
        ended.wait()
        return Breaker(published, least)

    def lose(c: Communicator) -> tuple[str | None, BaseException | None]:
        threading.current_thread().name = f"rank {c.rank}"
        with pytest.raises(GenerationBroken, match="0 of 1 connections of a gloo group are left"), c.guard():
            form(c)
        return c.broken, c.failure

    monkeypatch.setattr(stock, "Breaker", then_rank_1_ends)
    ends = each(lose, connect(2))
    assert all(broken and failure is None for broken, failure in ends), ends
    monkeypatch.undo()
    assert each(lambda c: add(form(c).group, 1.0), connect(2)) == [[2.0] * 3] * 2
