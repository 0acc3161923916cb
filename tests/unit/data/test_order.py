"""Properties of the data order: the design page's promises 2 and 3."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.order import Order

orders = st.builds(
    Order,
    length=st.integers(1, 400),
    global_batch_size=st.integers(1, 64),
    seed=st.integers(-5, 2**70),
    shuffle=st.booleans(),
)


@given(orders, st.data())
def test_every_sample_of_an_epoch_is_consumed_exactly_once_if_the_world_changes_at_every_step(order, data) -> None:
    epoch = data.draw(st.integers(0, 3))
    seen = []
    for k in range(order.steps_per_epoch):
        world = data.draw(st.integers(1, 9))
        for rank in range(world):
            seen += order.slice(epoch * order.steps_per_epoch + k, rank, world).indices
    assert sorted(seen) == list(range(order.length))


@given(orders, st.integers(0, 500), st.integers(1, 100))
def test_global_batch_is_exact_if_it_does_not_divide_by_the_world(order, step, world) -> None:
    parts = [order.slice(step, rank, world) for rank in range(world)]
    assert [i for p in parts for i in p.indices] == list(order.batch(step))
    assert sum(p.weight for p in parts) == pytest.approx(1)
    sizes = [len(p.indices) for p in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(p.fetch for p in parts), "a rank without samples has nothing to run forward with"
    assert all(p.weight == 0 for p in parts if not p.indices)


@given(orders, st.integers(0, 500))
def test_samples_before_is_the_sum_of_the_batches(order, step) -> None:
    assert order.samples_before(step + 1) - order.samples_before(step) == len(order.batch(step))


@given(st.lists(orders, min_size=1, max_size=4))
def test_each_loop_has_whole_epochs_if_loops_have_data_of_other_lengths(loops) -> None:
    before, end = None, 0
    for epoch, order in enumerate(loops):
        order = order.behind(before, end)
        assert order.end_of(epoch) == end, "it does not begin where the loop before ended"
        assert order.samples_before(end) == sum(loop.length for loop in loops[:epoch])
        first, end, before = end, order.end_of(epoch + 1), order
        steps = range(first, end)
        assert {order.where(step)[0] for step in steps} == {epoch}
        assert sorted(i for step in steps for i in order.batch(step)) == list(range(order.length))
        assert [order.left(step) for step in steps] == [*range(len(steps), 0, -1)]


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 10))
def test_every_batch_is_full_if_drop_last(length, size, step) -> None:
    if length < size:
        with pytest.raises(ValueError, match="global_batch_size"):
            Order(length, size, drop_last=True)
        return
    order = Order(length, size, drop_last=True)
    assert len(order.batch(step)) == size
    assert order.samples_before(order.steps_per_epoch) == length - length % size


def test_epochs_differ_and_repeat_by_seed_if_shuffled() -> None:
    order = Order(50, 50, seed=1)
    assert order.batch(0) != order.batch(1)
    assert order.batch(1) == Order(50, 50, seed=1).batch(1)
    assert order.batch(0) != Order(50, 50, seed=2).batch(0)


@pytest.mark.parametrize(
    ("options", "field"), [({"length": 0}, "dataset"), ({"global_batch_size": 0}, "global_batch_size")]
)
def test_error_names_the_argument_if_it_is_out_of_range(options, field) -> None:
    with pytest.raises(ValueError, match=field):
        Order(**{"length": 10, "global_batch_size": 2, **options})


@given(orders, st.integers(0, 500), st.integers(1, 20), st.integers(1, 20))
def test_micro_batches_cover_each_sample_once_and_weigh_1_if_they_are_cut_to_a_size(order, step, world, size) -> None:
    order = replace(order, micro_batch_size=size)
    cut = [order.micro_slices(step, rank, world) for rank in range(world)]
    assert [i for parts in cut for p in parts for i in p.indices] == list(order.batch(step))
    assert sum(p.weight for parts in cut for p in parts) == pytest.approx(1)
    for rank, parts in enumerate(cut):
        part = order.slice(step, rank, world)
        assert tuple(i for p in parts for i in p.indices) == part.indices
        assert all(len(p.fetch) <= size for p in parts)
        assert len(parts) == max(1, -(-len(part.indices) // size)), "more micro-batches than needed"


@given(orders, st.integers(0, 500), st.integers(1, 20), st.integers(1, 20), st.integers(1, 40))
def test_logical_micro_batches_are_the_same_if_the_world_is_another(order, step, world, other, count) -> None:
    order = replace(order, micro_batches=count)

    def cut(size: int) -> list:
        parts = [p for rank in range(size) for p in order.micro_slices(step, rank, size)]
        return [(p.start, p.indices, p.weight) for p in parts if p.indices]

    assert cut(world) == cut(other)
    assert [i for _, indices, _ in cut(world) for i in indices] == list(order.batch(step))
    assert sum(weight for *_, weight in cut(world)) == pytest.approx(1)
    assert len(cut(world)) == min(count, len(order.batch(step)))
    counted = [p for rank in range(world) for p in order.micro_slices(step, rank, world) if p.indices]
    assert [p.leaf for p in counted] == list(range(len(counted)))
    assert {p.leaves for p in counted} == {len(counted)}


def test_error_names_the_field_if_the_batch_is_cut_in_two_ways() -> None:
    with pytest.raises(ValueError, match="micro_batches: already says"):
        Order(10, 5, micro_batches=2, micro_batch_size=1)
    with pytest.raises(ValueError, match="micro_batch_size: 0: must be at least 1"):
        Order(10, 5, micro_batch_size=0)
