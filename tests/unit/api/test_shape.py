"""The shape of a replica: which ranks have the same samples, which hold the same part of the model, who counts."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.settings import RankSettings, shape_fields
from elastrain.api.shape import SHARDS, Dimension, Divides, Shape
from elastrain.data.order import Order

NAMES = [SHARDS, "pp", "cp", "tp", "ep", "other"]


@st.composite
def shapes(draw) -> Shape:
    names = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
    names = names if SHARDS in names else [SHARDS, *names[1:]]
    divides = {name: Divides.BATCH if name == SHARDS else draw(st.sampled_from(Divides)) for name in names}
    return Shape(tuple(Dimension(name, draw(st.integers(1, 3)), divides[name]) for name in names))


@given(shapes(), st.integers(1, 3))
def test_each_rank_has_one_coordinate_in_its_replica(shape, replicas) -> None:
    every = [tuple(shape.coordinates(rank).items()) for rank in range(shape.size)]
    assert len(set(every)) == shape.size
    for rank in range(shape.size * replicas):
        assert shape.number(shape.coordinates(rank)) == rank % shape.size
    assert shape.coordinates(shape.size - 1) == {d.name: d.size - 1 for d in shape.dimensions}


@given(shapes())
def test_neighbours_differ_in_the_last_dimension(shape) -> None:
    last = shape.dimensions[-1]
    for rank in range(0, shape.size, last.size):
        assert shape.along(rank, last.name) == list(range(rank, rank + last.size))


@given(shapes(), st.data())
def test_ranks_along_a_dimension_know_each_other_in_the_same_order(shape, data) -> None:
    names = data.draw(st.sets(st.sampled_from(shape.names)))
    for rank in range(shape.size):
        mates = shape.along(rank, *names)
        assert rank in mates
        assert all(shape.along(mate, *names) == mates for mate in mates)


@given(shapes(), st.integers(1, 3))
def test_each_part_of_a_batch_is_computed_in_one_replica_and_counted_once(shape, replicas) -> None:
    world = shape.size * replicas
    owners: dict[int, list[int]] = {}
    for rank in range(world):
        part, parts = shape.part(rank, world)
        owners.setdefault(part, []).append(rank)
    assert sorted(owners) == list(range(parts))
    together = [d.name for d in shape.dimensions if d.divides is not Divides.BATCH]
    for ranks in owners.values():
        assert ranks == shape.along(ranks[0], *together)
        assert [shape.counts(rank) for rank in ranks].count(True) == 1


@given(shapes(), st.integers(1, 3), st.integers(1, 40))
def test_every_sample_is_used_once_and_the_weights_of_the_losses_add_up_to_one(shape, replicas, batch) -> None:
    world, order = shape.size * replicas, Order(100, batch, 0, True, True)
    samples, weight = [], 0.0
    for rank in range(world):
        part, parts = shape.part(rank, world)
        mine = order.slice(0, part, parts)
        samples += mine.indices if shape.counts(rank) else ()
        weight += mine.weight / shape.sequence_parts if shape.has_loss(rank) else 0.0
    assert sorted(samples) == sorted(order.batch(0))
    assert weight == pytest.approx(1)


@given(shapes(), st.integers(1, 3), st.data())
def test_twins_hold_the_same_part_of_the_model_in_all_replicas(shape, replicas, data) -> None:
    """Gradients are summed over them, and over the dimensions that divide the loss and have not cut the parameter."""
    world = shape.size * replicas
    summed = data.draw(st.sets(st.sampled_from(shape.names)))
    groups = {tuple(shape.twins(rank, world, *summed)) for rank in range(world)}
    assert sorted(rank for group in groups for rank in group) == list(range(world)), "each rank is in one sum"
    for group in groups:
        kept = [{n: at for n, at in shape.coordinates(rank).items() if n not in summed} for rank in group]
        assert all(each == kept[0] for each in kept)


@given(shapes())
def test_ranks_receive_the_shape_that_was_meant(shape) -> None:
    """Short forms stay short, so that earlier images can read them."""
    settings = RankSettings(**shape_fields(shape))
    read = RankSettings.model_validate_json(settings.model_dump_json(by_alias=True, exclude_defaults=True))
    if read.mesh or shape.size > 1:
        assert read.shape == shape
    else:
        assert read.shape == Shape(), "dp_shard of one rank is a whole model"
    assert bool(read.mesh) == (shape.short is None)


@pytest.mark.parametrize(("shards", "tensor"), [(1, 1), (2, 1), (4, 2), (4, 4), (6, 3), (4096, 1)])
def test_shards_and_tensor_are_short_forms_of_a_mesh(shards, tensor) -> None:
    shape = Shape.of(shards, tensor)
    assert shape.size == shards
    assert shape.short == (shards, tensor)
    assert shape_fields(shape) == {"shards": shards, "tensor": tensor, "mesh": ()}


def test_the_last_stage_of_a_pipeline_has_the_loss_and_each_rank_along_a_sequence() -> None:
    shape = Shape.from_mesh(RankSettings.model_validate_json(
        '{"shards": 16, "mesh": [{"name": "pp", "size": 2}, {"name": "dp_shard", "size": 2}, {"name": "cp", "size": 2},'
        '{"name": "tp", "size": 2}]}'
    ).mesh)  # fmt: skip
    with_loss = [c for c in map(shape.coordinates, range(16)) if shape.has_loss(shape.number(c))]
    assert with_loss == [{"pp": 1, "dp_shard": d, "cp": c, "tp": 0} for d, c in product(range(2), range(2))]
    assert (shape.stages, [shape.stage(r) for r in (0, 7, 8, 15)]) == (2, [0, 0, 1, 1])
