"""The connections of one generation, with the ranks as threads of the test: real sockets."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bench_harness.played_ranks import SECRET
from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.comm.channel import Channels
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind, Label
from elastrain.elastic.strategies.replicated import sum_sparse


def test_every_rank_gets_the_values_of_all(pair, each) -> None:
    assert each(lambda c: c.all_gather_ints([c.rank, 7]), pair) == [[[0, 7], [1, 7]]] * 2


def test_a_blocked_collective_ends_at_once_on_both_sides_if_one_rank_aborts(pair) -> None:
    waiting, aborting = pair
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(waiting.all_gather_ints, [0], Kind.BARRIER)
        time.sleep(0.05)  # let it block; if it has not yet, the abort is met on the way in
        began = time.monotonic()
        aborting.abort("test")
        with pytest.raises(GenerationBroken):
            blocked.result(10)
        assert time.monotonic() - began < 5, "it waited for a timeout"
    assert waiting.broken
    with pytest.raises(GenerationBroken, match="test"):
        aborting.all_gather_ints([0], Kind.BARRIER)


def test_own_abort_ends_a_collective_that_waits_for_a_silent_peer(pair) -> None:
    waiting, _silent = pair
    threading.Timer(0.05, waiting.abort, ["member w1 is lost"]).start()
    with pytest.raises(GenerationBroken, match="member w1 is lost"):
        waiting.all_gather_ints([0], Kind.BARRIER)


def test_a_sum_that_waits_for_a_silent_peer_ends_if_the_generation_is_called_off(pair) -> None:
    waiting, _silent = pair
    threading.Timer(0.05, waiting.call_off, ["member w1 is lost"]).start()
    with pytest.raises(GenerationBroken, match="member w1 is lost"):
        waiting.all_gather_ints([0], Kind.BARRIER)


def test_a_generation_of_one_member_ends_at_once_if_called_off(listeners, each) -> None:
    """No other member can share its step, and it may be replaced."""
    place = {"address": "127.0.0.1", "store_port": listeners[0].port}
    alone = GenerationMember(id="m0", worker="w0", rank_offset=0, slots=2, **place)
    g = Generation(number=1, members=(alone,), reason="Test", leader="m0", secret=SECRET)
    ranks = each(lambda r: Communicator(of=g, rank=r, listener=listeners[r]), [0, 1])
    ranks[0].sum_bucket(torch.ones(4))
    ranks[0].call_off("etcd has not confirmed the lease")
    assert ranks[0].broken == "etcd has not confirmed the lease"
    for c in ranks:
        c.close()


def test_other_groups_stay_healthy_if_one_is_aborted(connect, each) -> None:
    first, second = connect(2, number=1), connect(2, number=2)
    first[0].abort("test")
    assert each(lambda c: c.all_gather_ints([c.rank]), second) == [[[0], [1]]] * 2


def test_nothing_is_left_open_if_generations_come_and_go(connect, listeners) -> None:
    def cycle(number: int) -> tuple[int, int]:
        for c in connect(3, number):
            c.abort("test")
            c.close()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    cycle(1)
    first = cycle(2)
    for number in range(3, 13):
        last = cycle(number)
    # A leak would show once per group, 30 times; torch itself keeps a few after a slow connect.
    assert last[0] - first[0] < 10, "file descriptors leak"
    assert last[1] - first[1] < 10, "threads leak"
    assert not any(listener._expected for listener in listeners.values())


def test_values_are_completed_first_if_several_transports_sum_them(pair, each, monkeypatch) -> None:
    class Doubled:
        """Accepts only float64, and sums locally."""

        def __init__(self, tcp) -> None:
            self.tcp = tcp

        def takes(self, tensor: torch.Tensor) -> bool:
            return tensor.dtype == torch.float64

        def sum(self, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
            return self.tcp.sum(buffer, label)

    for c in pair:
        c._transports.insert(0, Doubled(c._tcp))

    def add(c: Communicator) -> float:
        buffers = torch.ones(2, dtype=torch.float64), torch.full((1,), c.rank + 1.0)
        torch.futures.wait_all(c.sum_together(*buffers))
        return buffers[1].item()

    assert each(add, pair) == [3, 3]


def test_the_rank_fails_itself_if_no_transport_sums_a_kind_of_tensor(pair) -> None:
    one, _ = pair
    one.sum_bucket(torch.ones(3).to_sparse()).wait()
    assert str(one.failure) == "no transport sums tensors on cpu with layout torch.sparse_coo"


def test_bytes_of_different_lengths_reach_every_rank(connect, each) -> None:
    assert each(lambda c: c.all_gather_bytes(bytes(range(c.rank))), connect(3)) == [[b"", b"\0", b"\0\1"]] * 3


def test_forming_a_generation_ends_with_closed_connections_if_a_peer_is_lost(
    generation, listeners, each, monkeypatch
) -> None:
    accept = Channels.accept

    def leave(self: Channels, ranks, *others):
        if not ranks:  # the last rank accepts nothing: it has connected to all others
            self.shut()
        return accept(self, ranks, *others)

    monkeypatch.setattr(Channels, "accept", leave)
    g = generation(2)

    def form(rank: int) -> str:
        c = Communicator(of=g, rank=rank, listener=listeners[rank])
        with pytest.raises(GenerationBroken) as broken:
            c.all_gather_ints([0], Kind.BARRIER)
        c.close()
        return broken.value.cause

    assert all(each(form, range(2)))


def test_rows_of_sparse_gradients_reach_all_ranks_also_if_their_numbers_differ(connect, each) -> None:
    rows = [[0, 2, 2], [], [2, 4]]

    def add(c: Communicator) -> torch.Tensor:
        mine = rows[c.rank]
        gradient = torch.sparse_coo_tensor([mine], torch.ones(len(mine), 3) * (c.rank + 1), (5, 3))
        return sum_sparse(c, gradient)

    expected = torch.zeros(5, 3)
    for rank, mine in enumerate(rows):
        for row in mine:
            expected[row] += rank + 1
    for total in each(add, connect(3)):
        assert torch.equal(total.to_dense(), expected)
        assert total.indices().tolist() == [[0, 2, 4]]
