"""The group of one generation, with both ranks as threads of the test: real gloo, real sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic import state, store
from elastrain.elastic.communicator import Communicator, GenerationBroken

SERVERS: list[dist.TCPStore] = []


def connect(world_size: int, number: int = 1) -> list[Communicator]:
    server = store.serve("127.0.0.1")
    SERVERS[:] = [server]
    place = {"address": "127.0.0.1", "store_port": server.port}
    members = tuple(GenerationMember(id=f"m{r}", worker=f"w{r}", rank_offset=r, **place) for r in range(world_size))
    generation = Generation(number=number, members=members, reason="Test", leader="m0")

    def one(rank: int) -> Communicator:
        return Communicator(of=generation, rank=rank, store=store.meet(generation, lambda: False), address="127.0.0.1")

    return each(one, range(world_size))


def each(function: Callable, arguments: Iterator) -> list:
    """Run on all ranks at once."""
    arguments = list(arguments)
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(function, arguments, timeout=60))


@pytest.fixture
def pair() -> Iterator[list[Communicator]]:
    communicators = connect(2)
    yield communicators
    for c in communicators:
        c.close()


def test_every_rank_gets_the_values_of_all(pair) -> None:
    assert each(lambda c: c.all_gather_ints([c.rank, 7]), pair) == [[[0, 7], [1, 7]]] * 2


@pytest.mark.parametrize("receivers", [[1], [1, 2]])
def test_state_arrives_equal_if_it_takes_several_buckets(receivers, monkeypatch) -> None:
    monkeypatch.setattr(state, "BUCKET_BYTES", 100)
    tree = {
        "weights": torch.randn(7, 11, dtype=torch.float64),
        "half": torch.randn(5).bfloat16(),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0),
        "strided": torch.arange(12).reshape(3, 4).T,
        "nested": {0: [1, "two", None, (3.0, torch.tensor([4]))]},
    }
    ranks = connect(3)
    received = each(lambda c: state.transfer(lambda: tree, c, source=0, receivers=receivers), ranks)
    expected = torch.utils._pytree.tree_leaves(tree)
    for rank, got in enumerate(received):
        if rank not in receivers:
            assert got is None
            continue
        for a, b in zip(torch.utils._pytree.tree_leaves(got), expected, strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype if isinstance(b, torch.Tensor) else a == b
        assert got["nested"].keys() == {0}
    for c in ranks:
        c.close()


def test_a_blocked_collective_ends_at_once_on_both_sides_if_one_rank_aborts(pair) -> None:
    waiting, aborting = pair
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(waiting.barrier)
        time.sleep(0.05)  # let it block; if it has not yet, the abort is met on the way in
        began = time.monotonic()
        aborting.abort("test")
        with pytest.raises(GenerationBroken):
            blocked.result(10)
        assert time.monotonic() - began < 5, "it waited for a timeout"
    assert waiting.broken
    with pytest.raises(GenerationBroken, match="test"):
        aborting.barrier()


def test_own_abort_ends_a_collective_that_waits_for_a_silent_peer(pair) -> None:
    waiting, _silent = pair
    threading.Timer(0.05, waiting.abort, ["member w1 is lost"]).start()
    with pytest.raises(GenerationBroken, match="member w1 is lost"):
        waiting.barrier()


def test_a_failed_bucket_is_left_local_and_the_group_is_broken(pair) -> None:
    waiting, silent = pair
    hook = waiting.all_reduce_hook()
    bucket = type("Bucket", (), {"buffer": lambda self: torch.ones(4)})()
    future = hook(None, bucket)
    silent.abort("gone")
    future.wait()
    assert waiting.broken


def test_other_groups_stay_healthy_if_one_is_aborted() -> None:
    first, second = connect(2, number=1), connect(2, number=2)
    first[0].abort("test")
    assert each(lambda c: c.all_gather_ints([c.rank]), second) == [[[0], [1]]] * 2
    for c in (*first, *second):
        c.close()


def test_nothing_is_left_open_if_groups_come_and_go() -> None:
    def cycle(number: int) -> tuple[int, int]:
        for c in connect(3, number):
            c.abort("test")
            c.close()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    cycle(1)
    first = cycle(2)
    for number in range(3, 13):
        last = cycle(number)
    # A leak would show once per group, 30 times; torch itself keeps one or the other after a slow connect.
    assert last[0] - first[0] < 10, "file descriptors leak"
    assert last[1] - first[1] < 10, "threads leak"
