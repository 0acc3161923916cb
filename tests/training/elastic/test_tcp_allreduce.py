"""Sums over the ranks' own connections, with the ranks as threads of the test: real sockets, without a communicator."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from budgets import examples
from elastrain.elastic.comm import tcp_allreduce as module
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.tcp_allreduce import PIECE_BYTES, WINDOW, TcpAllreduce

LARGE = 4 << 20
"""Numbers of a tensor that no socket's buffers hold (16 MB)."""
PATIENCE = 30.0
LABEL = Label()


class Rank:
    """One rank's sums, and its ends of the connections."""

    def __init__(self, number: int, connections: dict[int, socket.socket]) -> None:
        self.number, self.connections = number, connections
        self.failures: list[Exception] = []
        self.mesh = Mesh(number, connections, self.shut)
        self.sums = TcpAllreduce(self.mesh, number, self.failures.append)

    def shut(self) -> None:
        for connection in self.connections.values():
            with contextlib.suppress(OSError):  # a test has closed it
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self.sums.close()
        for connection in self.connections.values():
            connection.close()


@pytest.fixture
def form() -> Iterator[Callable[..., list[Rank]]]:
    """``form(n)``: ``n`` ranks, connected to each other; they are closed at the end."""
    made: list[Rank] = []

    def of(count: int) -> list[Rank]:
        ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
        for one, other in combinations(range(count), 2):
            ends[one][other], ends[other][one] = socket.socketpair()
        ranks = [Rank(number, connections) for number, connections in enumerate(ends)]
        made.extend(ranks)
        return ranks

    yield of
    for rank in made:
        rank.close()


def add(ranks: list[Rank], tensors: list[torch.Tensor]) -> None:
    """Sum one tensor of each rank, in place."""
    begun = [rank.sums.sum(tensor, LABEL) for rank, tensor in zip(ranks, tensors, strict=True)]
    for future in begun:
        future.wait()
    assert not any(rank.failures for rank in ranks), [rank.failures for rank in ranks]


PIECE = PIECE_BYTES // 4
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
SIZES = st.one_of(
    st.integers(1, 9),
    st.sampled_from([PIECE, PIECE + 1, 3 * PIECE * WINDOW + 1]),
    st.integers(10, 3 * PIECE),
)


@examples(40, HealthCheck.function_scoped_fixture)
@given(world=st.integers(2, 5), size=SIZES, dtype=st.sampled_from(TYPES))
@example(world=3, size=3 * PIECE * WINDOW + 2, dtype=torch.float32)
@example(world=5, size=1, dtype=torch.float64)
def test_every_rank_has_the_sum_for_any_size_and_type(form, world, size, dtype) -> None:
    tensors = [torch.arange(size, dtype=torch.int64).remainder(13).add(r).to(dtype) for r in range(world)]
    expected = sum(tensor.double() for tensor in tensors)
    add(form(world), tensors)
    assert all(torch.equal(tensor.double(), expected) for tensor in tensors)


def test_sums_of_fractions_have_the_same_bits_on_all_ranks_and_each_time(form) -> None:
    generator = torch.Generator().manual_seed(0)
    brought = [torch.randn(PIECE + 5, generator=generator) for _ in range(4)]
    results = []
    for _ in range(3):
        tensors = [tensor.clone() for tensor in brought]
        add(form(4), tensors)
        results += tensors
    assert all(torch.equal(result, results[0]) for result in results)


def test_concurrent_sums_are_distinguished_by_their_order(form) -> None:
    ranks, sizes = form(3), [5, PIECE * 7, 1, PIECE, 5]
    tensors = [[torch.full((size,), 10.0**i + rank.number) for i, size in enumerate(sizes)] for rank in ranks]
    begun = [rank.sums.sum(tensor, LABEL) for rank, mine in zip(ranks, tensors, strict=True) for tensor in mine]
    for future in begun:
        future.wait()
    for mine in tensors:
        assert [float(tensor.mean()) for tensor in mine] == [3 * 10.0**i + 3 for i in range(len(sizes))]


def test_a_gradient_that_is_part_of_a_graph_keeps_its_version(form) -> None:
    tensors = [torch.ones(3), torch.ones(3)]
    add(form(2), tensors)
    assert [tensor._version for tensor in tensors] == [0, 0]


def test_a_sum_ends_after_its_cause_is_reported_if_connections_are_shut_in_the_middle_of_a_message(form) -> None:
    waiting, silent = form(2)
    silent.sums.close()  # it is connected and receives nothing
    future = waiting.sums.sum(torch.ones(LARGE), LABEL)
    threading.Timer(0.05, waiting.shut).start()
    future.wait()
    assert waiting.failures


def test_a_sum_ends_if_the_peer_is_lost_in_the_middle_of_a_message(form) -> None:
    waiting, lost = form(2)
    lost.sums.close()
    future = waiting.sums.sum(torch.ones(LARGE), LABEL)
    connection = lost.connections[0]
    connection.setblocking(True)
    connection.recv(1 << 16)
    connection.shutdown(socket.SHUT_RDWR)
    future.wait()
    assert waiting.failures


def test_nothing_is_held_after_an_abort_during_a_message(form) -> None:
    waiting, silent = form(2)
    silent.sums.close()
    future = waiting.sums.sum(torch.ones(LARGE), LABEL)
    waiting.shut()
    future.wait()
    waiting.sums.close()
    assert not waiting.sums._thread.is_alive()


def test_a_rank_gets_no_sum_if_the_others_have_failed_before_its_part(form) -> None:
    """It was frozen; the other rank's data is in its sockets."""
    frozen, waiting = form(2)
    begun = waiting.sums.sum(torch.ones(4), LABEL)
    frozen.connections[1].setblocking(True)
    frozen.connections[1].recv(1, socket.MSG_PEEK)
    frozen.connections[1].setblocking(False)
    waiting.shut()
    begun.wait()
    frozen.sums.sum(torch.ones(4), LABEL).wait()
    assert frozen.failures


@pytest.mark.parametrize("size", [4, 3 * PIECE])
def test_all_ranks_have_the_same_sums_if_a_generation_is_called_off_at_any_moment(form, size) -> None:
    """A rank that is not called off may have a sum, and commit it, only if the ranks that were called off have it."""
    moments = random.Random(0)
    for _ in range(20):
        ranks = form(3)
        have = [0, 0, 0]

        def train(rank: Rank, have: list[int] = have) -> None:
            with contextlib.suppress(PeerLost):  # called off
                while True:
                    rank.sums.sum(torch.ones(size), LABEL).wait()
                    if rank.failures:
                        return
                    have[rank.number] += 1

        threads = [threading.Thread(target=train, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for rank in ranks[1:]:
            time.sleep(moments.uniform(0, 0.01))
            rank.mesh.call_off()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert have[0] == have[1] == have[2]


def test_later_sums_are_unchanged_and_do_not_wait_if_one_failed(form) -> None:
    waiting, lost = form(2)
    lost.shut()
    first, second = torch.ones(2), torch.ones(LARGE)
    for future in [waiting.sums.sum(first, LABEL), waiting.sums.sum(second, LABEL)]:
        future.wait()
    assert len(waiting.failures) == 1
    assert float(second.sum()) == LARGE


def test_waiting_callers_get_the_error_if_summing_itself_fails(form, monkeypatch) -> None:
    def fail(_self, _flats, _label) -> None:
        raise MemoryError

    monkeypatch.setattr(module.TcpAllreduce, "_sum", fail)
    waiting, _ = form(2)
    waiting.sums.sum(torch.ones(2), LABEL).wait()
    assert [type(e) for e in waiting.failures] == [MemoryError]


def test_a_late_caller_does_not_wait(form) -> None:
    closed, _ = form(2)
    closed.shut()
    closed.sums.close()
    closed.sums.sum(torch.ones(2), LABEL).wait()


def test_a_non_contiguous_tensor_is_left_to_other_transports(form) -> None:
    (rank, _) = form(2)
    assert rank.sums.takes(torch.ones(3))
    assert not rank.sums.takes(torch.ones(3, 3).t()[:, :2])
    assert not rank.sums.takes(torch.ones(3).to_sparse())


@pytest.mark.parametrize("size", [1, PIECE, 3 * PIECE * WINDOW + 2])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_tensors_that_travel_together_are_summed_each(form, world, size) -> None:
    sizes = [size, 13]
    tensors = [[torch.arange(n, dtype=torch.float64).remainder(7).add(r) for n in sizes] for r in range(world)]
    expected = [sum(mine[i] for mine in tensors) for i in range(len(sizes))]
    begun = [rank.sums.sum_together(*mine, label=LABEL) for rank, mine in zip(form(world), tensors, strict=True)]
    for future in (future for futures in begun for future in futures):
        future.wait()
    assert all(torch.equal(tensor, right) for mine in tensors for tensor, right in zip(mine, expected, strict=True))


def test_values_are_completed_at_their_turn_and_not_before(form) -> None:
    one, other = form(2)
    completed, small = threading.Event(), torch.zeros(3)
    large = one.sums.sum(torch.ones(LARGE), LABEL)
    small_too = one.sums.sum_together(small, label=LABEL, before=lambda: (small.fill_(1), completed.set()))
    assert not completed.wait(0.1), "the peer has not sent its part of the large one"
    other.sums.sum(torch.ones(LARGE), LABEL)
    large.wait()
    assert completed.wait(PATIENCE)
    other.sums.sum(torch.full((3,), 10.0), LABEL)
    torch.futures.wait_all(small_too)
    assert small.tolist() == [11, 11, 11]
