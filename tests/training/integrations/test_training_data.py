"""A DataLoader that a framework was given: what becomes of its order and its batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from elastrain_frameworks.training_data import in_order_of

DATA = TensorDataset(torch.arange(12.0))


def arguments(source: Any, total: int = 8) -> dict[str, Any]:
    """The arguments with which the job's loader is made."""
    job = SimpleNamespace(dataloader=lambda dataset, **options: {"dataset": dataset, **options})
    made: dict[str, Any] = in_order_of(job, source, "prepare()", global_batch_size=total, seed=3)  # type: ignore
    return made


@pytest.mark.parametrize("shuffled", [True, False])
def test_the_order_is_the_jobs_own_if_the_loader_shuffles_or_does_not(shuffled):
    made = arguments(DataLoader(DATA, batch_size=4, shuffle=shuffled, drop_last=True))
    assert (made["shuffle"], made["seed"], made["drop_last"]) == (shuffled, 3, True)
    assert "sampler" not in made


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler(DATA, num_samples=30), RandomSampler(DATA, replacement=True), WeightedRandomSampler([1.0] * 12, 12)],
    ids=["more than an epoch", "with replacement", "weighted"],
)
def test_another_sampler_is_taken_over(sampler):
    made = arguments(DataLoader(DATA, batch_size=4, sampler=sampler))
    assert made["sampler"] is sampler
    assert "shuffle" not in made


@pytest.mark.parametrize(("size", "micro"), [(4, 4), (8, None)])
def test_the_batch_size_is_the_most_that_a_rank_computes_at_a_time(size, micro):
    made = arguments(DataLoader(DATA, batch_size=size), total=8)
    assert (made["global_batch_size"], made["micro_batch_size"]) == (8, micro)


def test_options_of_the_loader_are_kept():
    made = arguments(DataLoader(DATA, batch_size=4, num_workers=1, prefetch_factor=3, collate_fn=list))
    assert (made["num_workers"], made["prefetch_factor"], made["collate_fn"]) == (1, 3, list)
    assert "prefetch_factor" not in arguments(DataLoader(DATA, batch_size=4))


class Pairs(BatchSampler):
    """Batches of its own."""


@pytest.mark.parametrize(
    "source",
    [DataLoader(DATA, batch_size=None), DataLoader(DATA, batch_sampler=Pairs(SequentialSampler(DATA), 2, False)), [1]],
    ids=["no batches", "batches of a sampler", "no DataLoader"],
)
def test_the_way_out_is_named_if_the_batches_are_of_another_kind(source):
    with pytest.raises(ValueError, match=r"prepare\(\): must be a torch DataLoader .* job.dataloader"):
        arguments(source)
