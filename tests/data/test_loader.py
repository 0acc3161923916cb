"""The loader is a cursor: it can go on anywhere, for any part."""

import pytest

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order

ORDER = Order(length=40, global_batch_size=6, seed=2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_follow_the_order_if_the_world_changes_and_a_step_comes_again(num_workers) -> None:
    loader = ElasticLoader(range(40), ORDER, num_workers=num_workers, collate_fn=list)
    for step, rank, world in [(0, 0, 1), (1, 0, 1), (2, 1, 2), (2, 1, 3), (3, 1, 3), (9, 0, 1)]:
        batch, part = loader.fetch(step, rank, world)
        assert batch == list(part.fetch) == list(ORDER.slice(step, rank, world).fetch)


def test_a_stand_in_sample_is_loaded_if_the_part_is_empty() -> None:
    batch, part = ElasticLoader(range(40), ORDER, collate_fn=list).fetch(0, 7, 8)
    assert part.indices == ()
    assert batch == [ORDER.batch(0)[0]]
