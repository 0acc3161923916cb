"""`job.add()`: numbers of a script that are summed over the global batch of a step, whatever becomes of its bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastrain.elastic.job import Job
from threaded_world import RankThread, ThreadWorld

STEPS, BATCH = 6, 8


def train(
    job: Job, rank: RankThread, *, micro: int | None = 3, late: str = "", batch: int = BATCH
) -> list[tuple[int, float, float]]:
    """What each committed step has summed: (step, samples, their numbers)."""
    data = TensorDataset(torch.arange(48.0, dtype=torch.float64)[:, None])
    net = nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=batch, shuffle=False, micro_batch_size=micro)
    seen: list[tuple[int, float, float]] = []
    for (x,) in job.steps(loader, steps=STEPS):
        rank.body()
        assert job.body is not None
        if late and job.step:
            job.add(**{late: 1})
        job.add(samples=len(x), numbers=float(x.sum()))
        job.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if job.committed:
            seen.append((job.step, job.sums["samples"], job.sums["numbers"]))
    return seen


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., ThreadWorld]]:
    """``world(script)``"""
    worlds: list[ThreadWorld] = []

    def make(script: Callable[..., Any] = train) -> ThreadWorld:
        worlds.append(ThreadWorld(tmp_path / f"{len(worlds)}", script))
        return worlds[-1]

    yield make
    for made in worlds:
        made.close()


def of(step: int, batch: int = BATCH) -> tuple[int, float, float]:
    return step, float(batch), float(sum(range(step * batch, (step + 1) * batch)))


@pytest.mark.parametrize("ranks", ["a", "ab", "abc"])
def test_sums_are_those_of_the_global_batch_on_all_ranks(world, ranks) -> None:
    made = world()
    made.train(*ranks)
    made.serve(*ranks)
    for rank in ranks:
        assert made.error(rank) is None, made.ranks[rank].log.read_text()
        assert made.result(rank) == [of(step) for step in range(STEPS)]


def test_rank_without_a_sample_of_the_batch_adds_nothing(world) -> None:
    made = world(lambda job, rank: train(job, rank, micro=None, batch=2))
    made.train("a", "b", "c")
    made.serve("a", "b", "c")
    assert made.error("a") is None, made.ranks["a"].log.read_text()
    assert made.result("a") == [of(step, batch=2) for step in range(STEPS)]


def test_body_that_is_repeated_after_a_loss_adds_once(world) -> None:
    made = world()
    made.kills["b"] = ("body", 3)
    made.train("a", "b")
    made.lead()
    assert made.error("a") is None, made.ranks["a"].log.read_text()
    assert made.result("a") == [of(step) for step in range(STEPS)]


def test_name_that_the_first_body_did_not_have_is_refused(world) -> None:
    def script(job: Job, rank: RankThread) -> None:
        with pytest.raises(ValueError, match=r"job.add\(others=…\): add 0 to it in the loop bodies before"):
            train(job, rank, late="others")
        rank.die()

    made = world(script)
    made.train("a")
    made.wait("it ends", lambda: not made.alive("a"))
    assert made.error("a") is None, made.ranks["a"].log.read_text()
