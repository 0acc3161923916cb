"""The loader is a cursor: it can continue at any step, for any part."""

import ctypes
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order, Slice
from elastrain.data.rng import Kept
from elastrain.data.share import Share

ORDER = Order(length=40, global_batch_size=6, seed=2)


def fetch(loader: ElasticLoader, step: int, rank: int, world_size: int) -> tuple[Any, Slice]:
    """The data and the slice of a step that has one micro-batch."""
    (part,) = loader.begin(step, Share(rank, world_size))
    return loader.load(), part


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_follow_the_order_if_the_world_changes_and_a_step_comes_again(num_workers) -> None:
    loader = ElasticLoader(range(40), ORDER, num_workers=num_workers, collate_fn=list)
    for step, rank, world in [(0, 0, 1), (1, 0, 1), (2, 1, 2), (2, 1, 3), (3, 1, 3), (9, 0, 1)]:
        batch, part = fetch(loader, step, rank, world)
        assert batch == list(part.fetch) == list(ORDER.slice(step, rank, world).fetch)


def test_the_length_of_a_loader_is_that_of_an_epoch_in_steps() -> None:
    assert len(ElasticLoader(range(40), ORDER)) == 7
    with pytest.raises(TypeError, match="an endless stream has no length"):
        len(ElasticLoader(range(40), Order(None, 6, shuffle=False)))


def test_a_stand_in_sample_is_loaded_if_the_part_is_empty() -> None:
    batch, part = fetch(ElasticLoader(range(40), ORDER, collate_fn=list), 0, 7, 8)
    assert part.indices == ()
    assert batch == [ORDER.batch(0)[0]]


class Slow:
    """Sample i is i and takes a while; records the samples that were begun."""

    def __init__(self, log: Path, seconds: float) -> None:
        self.log, self.seconds = log, seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        with self.log.open("a") as f:
            f.write(f"{os.getpid()} {index}\n")
        time.sleep(self.seconds)
        return index

    def begun(self) -> list[tuple[int, int]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(pid), int(index)) for pid, index in map(str.split, lines)]


def test_workers_stay_and_drop_prefetched_batches_if_the_world_changes(tmp_path) -> None:
    dataset = Slow(tmp_path / "log", 0.1)
    order = replace(ORDER, length=400)
    loader = ElasticLoader(dataset, order, num_workers=2, collate_fn=list)
    fetch(loader, 0, 0, 1)
    before = dataset.begun()
    batch, part = fetch(loader, 20, 1, 2)  # both workers were at work on steps 1 to 4 for the old world
    assert batch == list(part.indices)
    begun = dataset.begun()
    assert {pid for pid, _ in begun} == {pid for pid, _ in before}, "workers were replaced"
    needed = {i for step in range(20, 26) for i in order.slice(step, 1, 2).indices}
    stale = [index for _, index in begun[len(before) :] if index not in needed]
    # The current one of each worker; more only while this process is not scheduled. All prefetched ones would be 24.
    assert len(stale) <= 8, f"stale samples were begun: {stale}"


def test_augmentation_of_a_sample_is_the_same_on_any_rank_or_worker() -> None:
    class Augmented:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[int, float, float, float]:
            return index, torch.rand(()).item(), np.random.rand(), random.random()

    def epoch(world: int, num_workers: int, epoch: int) -> set[tuple]:
        found = []
        loader = ElasticLoader(Augmented(), ORDER, num_workers=num_workers, collate_fn=list)
        for step in range(epoch * 7, epoch * 7 + 7):
            for rank in range(world):
                batch, part = fetch(loader, step, rank, world)
                found += batch if part.indices else []
        assert len(found) == 40
        return set(found)

    with Kept():
        expected = epoch(1, 0, epoch=0)
        assert epoch(3, 2, epoch=0) == expected
        assert epoch(2, 0, epoch=0) == expected
        assert not epoch(1, 0, epoch=1) & expected


def test_draws_of_a_collate_function_depend_on_the_micro_batch_only() -> None:
    def masked(samples: list[int]) -> list[tuple[int, float]]:
        return list(zip(samples, torch.rand(len(samples)).tolist(), strict=True))

    def batches(num_workers: int, first: int = 0) -> list[list[tuple[int, float]]]:
        loader = ElasticLoader(range(40), ORDER, num_workers=num_workers, collate_fn=masked)
        return [fetch(loader, step, 0, 1)[0] for step in range(first, 7)]

    with Kept():
        expected = batches(0)
        assert batches(2) == expected
        assert batches(0, first=3) == expected[3:]
        assert len({number for batch in expected for _, number in batch}) == 40, "all samples get different numbers"


def test_batched_access_stays_if_only_the_collate_function_draws_and_ends_if_samples_draw() -> None:
    calls: list[str] = []

    class Batched:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> list[float]:
            calls.append("one")
            return [random.random()]

        def __getitems__(self, indices: list[int]) -> list[list[float]]:
            calls.append("batch")
            return [[random.random()] if len(calls) > 3 else [0.0] for _ in indices]

    def masked(samples: list[list[float]]) -> float:
        return (
            sum(s.pop() for s in samples) + torch.rand(()).item()
        )  # modifies its samples, as some collate functions do

    loader = ElasticLoader(Batched(), ORDER, collate_fn=masked)
    with Kept():
        fetch(loader, 0, 0, 1)
        assert calls == ["batch", "batch"], "the draw was detected, and the batch made again"
        fetch(loader, 1, 0, 1)
        assert calls == ["batch", "batch", "batch"]
        fetch(loader, 2, 0, 1)
        assert calls[3:] == ["batch", *["one"] * 6]


def test_own_streams_are_unchanged_if_samples_draw_in_the_training_process() -> None:
    class Drawing:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> float:
            return random.random() + np.random.rand() + torch.rand(()).item()

    loader = ElasticLoader(Drawing(), ORDER, collate_fn=list)
    with Kept():
        random.seed(1)
        expected = random.random()
        random.seed(1)
        fetch(loader, 0, 0, 1)
        fetch(loader, 1, 0, 1)
        assert random.random() == expected


def test_the_error_reports_a_killed_worker_process(tmp_path) -> None:
    dataset = Slow(tmp_path / "log", 0.01)
    loader = ElasticLoader(dataset, ORDER, num_workers=1, collate_fn=list)
    fetch(loader, 0, 0, 1)
    os.kill(dataset.begun()[0][0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for step in range(1, 30):
            fetch(loader, step, 0, 1)


def test_an_error_of_the_data_set_arrives_with_its_traceback() -> None:
    class Broken:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            raise KeyError(f"sample {index} is damaged")

    loader = ElasticLoader(Broken(), ORDER, num_workers=1)
    with pytest.raises(KeyError, match="is damaged"):
        fetch(loader, 0, 0, 1)


def test_the_kernel_ends_worker_processes_with_their_rank() -> None:
    class DeathSignal:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, _index: int) -> int:
            found = ctypes.c_int()
            ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0)  # PR_GET_PDEATHSIG
            return found.value

    batch, _ = fetch(ElasticLoader(DeathSignal(), ORDER, num_workers=1, collate_fn=list), 0, 0, 1)
    assert set(batch) == {signal.SIGKILL}


def test_micro_batches_come_one_by_one_and_a_repeated_step_starts_over() -> None:
    order = Order(length=40, global_batch_size=6, micro_batch_size=2, shuffle=False)
    loader = ElasticLoader(range(40), order, collate_fn=list)
    first = loader.begin(0, Share(0, 1))
    assert [part.indices for part in first] == [(0, 1), (2, 3), (4, 5)]
    assert loader.load() == [0, 1]
    for share, expected in ((Share(0, 1), [[0, 1], [2, 3], [4, 5]]), (Share(1, 2), [[3, 4], [5]])):
        parts = loader.begin(0, share)
        assert [loader.load() for _ in parts] == expected
    loader.begin(1, Share(1, 2))
    assert loader.load() == [9, 10]
    loader.begin(2, Share(1, 2))  # the second micro-batch of step 1 was not taken
    assert loader.load() == [15, 16]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_step_is_cut_once_for_loading_and_for_training(num_workers, monkeypatch) -> None:
    cut: list[int] = []
    micro_slices = Order.micro_slices

    def count(order: Order, step: int, *share: Any, **options: Any) -> tuple[Slice, ...]:
        cut.append(step)
        return micro_slices(order, step, *share, **options)

    monkeypatch.setattr(Order, "micro_slices", count)
    loader = ElasticLoader(range(40), ORDER, collate_fn=list, num_workers=num_workers)
    for step in range(5):
        fetch(loader, step, 0, 1)
    assert len(cut) == len(set(cut)) >= 5
