"""Groups whose ranks are threads of the test, and a scripted agent: the test simulates agents and leader, the ranks are
real processes."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench_harness import played_ranks
from bench_harness.played_ranks import PATIENCE, SECRET
from elastrain.api.records import Generation, GenerationMember
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.listener import Listener
from played_card import card
from warm import Warm

__all__ = ["card"]
SCRIPT = Path(__file__).parent / "train_float64.py"


class World(played_ranks.World):
    """The ranks of one test and the leader's part."""

    def start(self, *ranks: str, script: Path | None = None, **options: Any) -> None:
        super().start(*ranks, script=script or SCRIPT, **options)


@pytest.fixture
def world(tmp_path: Path, warm: Warm) -> Iterator[World]:
    w = World(tmp_path, warm)
    yield w
    for r in w.ranks.values():
        r.stop()


@pytest.fixture
def listeners() -> Iterator[defaultdict[int, Listener]]:
    """Those of the ranks, which are threads of the test."""
    made = defaultdict(lambda: Listener("127.0.0.1"))
    yield made
    for listener in made.values():
        listener.close()


@pytest.fixture
def generation(listeners: defaultdict[int, Listener]) -> Callable[..., Generation]:
    """Generations of workers ``w0``, ``w1`` … with one rank each."""

    def of(world_size: int, number: int = 1) -> Generation:
        place = {"address": "127.0.0.1", "store_port": listeners[0].port}
        members = tuple(GenerationMember(id=f"m{r}", worker=f"w{r}", rank_offset=r, **place) for r in range(world_size))
        return Generation(number=number, members=members, reason="Test", leader="m0", secret=SECRET)

    return of


@pytest.fixture
def each() -> Callable[[Callable, Iterable], list]:
    """Run on all ranks at once."""

    def run(function: Callable, arguments: Iterable) -> list:
        arguments = list(arguments)
        with ThreadPoolExecutor(len(arguments)) as pool:
            return list(pool.map(function, arguments, timeout=PATIENCE))

    return run


@pytest.fixture
def connect(generation, listeners, each) -> Iterator[Callable[..., list[Communicator]]]:
    """Communicators of a number of ranks, of a generation for each call; they are closed at the end.

    ``sparse``: as with NCCL, which no rank forms: connected as the neighbours of a tree."""
    made: list[Communicator] = []
    numbers = itertools.count(1)

    def of(world_size: int, number: int = 0, *, sparse: bool = False) -> list[Communicator]:
        g = generation(world_size, number or next(numbers))

        def one(rank: int) -> Communicator:
            offer = Offer(card=f"GPU-{rank}", inner=Backend.NCCL) if sparse else None
            return Communicator(of=g, rank=rank, listener=listeners[rank], offer=offer)

        ranks = each(one, range(world_size))
        made.extend(ranks)
        return ranks

    yield of
    for c in made:
        c.close()


@pytest.fixture
def pair(connect) -> list[Communicator]:
    return connect(2)
