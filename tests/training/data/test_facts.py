"""What ranks and checkpoints compare of the order of their data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, WeightedRandomSampler

from elastrain.data import LengthBuckets, Shuffled
from elastrain.data.facts import OrderFacts, OtherData, check_resumed, difference, differing
from elastrain.data.options import order_of


def facts(samples: int = 640, *, size: int | None = 32, **options: Any) -> OrderFacts:
    data = range(samples)
    given = {"global_batch_size": size, "seed": 3, "shuffle": None, "drop_last": False, **options}
    order = order_of(data, **given)
    return OrderFacts.of(order).begin_epoch(order, 0)


class Reversed:
    """Any iterable of indices."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __iter__(self):
        return iter([*range(639, 0, -1), self.last])


@pytest.mark.parametrize(
    "other",
    [
        {"samples": 672},
        {"size": 16},
        {"seed": 4},
        {"shuffle": False},
        {"drop_last": True, "samples": 650},
        {"micro_batches": 4},
        {"sampler": Shuffled(640, seed=9)},
        {"sampler": RandomSampler(range(640), replacement=True)},
        {"sampler": WeightedRandomSampler([1.0] * 639 + [9.0], 640)},
        {"sampler": Reversed(0)},
        {"sampler": Reversed(1)},
        {"batch_sampler": LengthBuckets([1] * 640, batch_size=32), "size": None},
    ],
)
def test_facts_differ_if_ranks_would_train_on_other_samples(other) -> None:
    one, another = facts(650 if "drop_last" in other else 640), facts(**other)
    assert one.digest != another.digest
    assert facts(**other) == another, "they depend on the process"
    assert OrderFacts(**asdict(another)) == another


def test_facts_are_the_same_if_only_the_memory_of_a_step_differs() -> None:
    assert facts(micro_batch_size=4, even=True) == facts()


def test_the_error_names_both_values_and_the_way_out() -> None:
    text = difference(facts(672), facts(), 2, 0)
    assert text.startswith(
        "job.dataloader(): rank 2 has samples=672, steps_per_epoch=21; rank 0 has samples=640, steps_per_epoch=20: "
        "all workers must give the same data set"
    )
    with pytest.raises(
        OtherData, match=r"this script has seed=4; the job's state of step 7 was computed with seed=3: "
    ):
        check_resumed(facts(seed=4), facts(), 7)
    check_resumed(facts(micro_batches=4), facts(), 7)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_the_ranks_that_stay_are_alike_and_most(orders, data) -> None:
    ranks = range(len(orders))
    asked = data.draw(st.sets(st.sampled_from(ranks)))
    holders = data.draw(st.sets(st.sampled_from(ranks)))
    leave = differing(orders, sorted(asked), sorted(holders))
    stay = [rank for rank in asked if orders[rank] and rank not in leave]
    assert len({orders[rank] for rank in stay}) == bool(stay)
    assert bool(stay) == any(orders[rank] for rank in asked)
    decide = [rank for rank in asked & holders if orders[rank]] or [rank for rank in asked if orders[rank]]
    assert not stay or sum(orders[rank] == orders[stay[0]] for rank in decide) == max(
        [sum(orders[rank] == order for rank in decide) for order in orders if order], default=0
    )


def test_a_joiner_leaves_whatever_the_number_of_joiners() -> None:
    assert differing([1, 2, 2, 2], range(4), [0]) == [1, 2, 3]
    assert differing([1, 2, 0], range(3), []) == [1]
