"""``spec.parallelism``: which jobs of sharded models are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from elastrain.api.settings import RankSettings, shape_fields
from elastrain.api.shape import ONE_RANK, Shape
from elastrain_resource.job import JobSpec

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python"]}]}}


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 2, "template": TEMPLATE, **fields})


def test_each_rank_holds_the_whole_model_if_nothing_is_set() -> None:
    assert spec().shards == spec(parallelism={}).shards == 1


@pytest.mark.parametrize("nproc", [2, 4])
def test_a_worker_may_hold_one_group_or_several(nproc: int) -> None:
    assert spec(nprocPerNode=nproc, parallelism={"shards": 2}).shards == 2


@pytest.mark.parametrize(("nproc", "workers"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_a_group_may_have_several_workers(nproc: int, workers: int) -> None:
    assert spec(nprocPerNode=nproc, parallelism={"shards": 4}).group_size == workers


@pytest.mark.parametrize("nproc", [1, 3, "auto"])
def test_all_ranks_of_any_workers_may_hold_one_copy(nproc: Any) -> None:
    one_copy = spec(nprocPerNode=nproc, parallelism={"shards": "all"}, checkpoint={"path": "/c", "everySteps": 9})
    assert one_copy.shards == "all"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parallelism": {"shards": 0}}, "must be a whole number from 1 to 2147483647, or all"),
        ({"parallelism": {"shards": "some"}}, "must be a whole number from 1 to 2147483647, or all"),
        ({"nprocPerNode": 3, "parallelism": {"shards": 2}}, r"must divide nprocPerNode \(3\)"),
        ({"nprocPerNode": 2, "parallelism": {"shards": 3}}, r"must divide nprocPerNode \(2\), .* a multiple of it"),
        ({"parallelism": {"tensor": 2}}, "must divide parallelism.shards, .*; it is 1"),
        ({"nprocPerNode": 4, "parallelism": {"shards": 4, "tensor": 3}}, "must divide parallelism.shards, .*; it is 4"),
        ({"parallelism": {"shards": "all", "tensor": 2}}, "which must be a number: .*; it is all"),
        ({"nprocPerNode": "auto", "parallelism": {"shards": 2}}, r"must divide nprocPerNode \(auto\), .* a number"),
    ],
)
def test_a_job_is_refused_with_the_way_out_if_its_groups_are_not_whole_or_not_served(fields: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(**fields)


def test_ranks_copy_their_shards_so_that_at_most_20_steps_are_repeated_if_nothing_is_set() -> None:
    assert spec().rank_settings(1) == RankSettings()
    assert spec(parallelism={"shards": "all"}).rank_settings(1).max_redone_steps == 20
    assert spec(parallelism={"shards": "all", "maxRedoneSteps": 0}).rank_settings(1).max_redone_steps == 0


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_part_of_a_group_or_all_of_it_may_compute_layers_together(tensor: int) -> None:
    assert spec(nprocPerNode=4, parallelism={"shards": 4, "tensor": tensor}).shape == Shape.of(4, tensor)


def mesh(*sizes: Any, nproc: Any = 8, **fields: Any) -> JobSpec:
    """``sizes``: by name, or whole dimensions."""
    dimensions = [s if isinstance(s, dict) else {"name": s[0], "size": s[1]} for s in sizes]
    return spec(nprocPerNode=nproc, parallelism={"mesh": dimensions, **fields})


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_mesh_and_its_short_form_mean_the_same(tensor: int) -> None:
    long = mesh(("dp_shard", 4), ("tp", tensor)) if tensor > 1 else mesh(("dp_shard", 4))
    short = spec(nprocPerNode=8, parallelism={"shards": 4 * tensor, "tensor": tensor})
    assert (long.shape, long.shards, long.group_size) == (short.shape, short.shards, short.group_size)
    assert shape_fields(long.shape) == shape_fields(short.shape)


@pytest.mark.parametrize(("nproc", "workers"), [(8, 1), (16, 1), (4, 2), (1, 8)])
def test_the_workers_of_a_group_follow_from_the_product_of_its_sizes(nproc: int, workers: int) -> None:
    found = mesh(("pp", 2), ("dp_shard", 2), ("cp", 1), ("tp", 2), nproc=nproc)
    assert (found.group_size, found.shards, found.replica) == (workers, 8, "worker" if workers == 1 else "group")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("pp", 2)], "must have a dimension dp_shard"),
        ([("dp_shard", 2), ("dp_shard", 2)], "dimensions of different names"),
        ([("dp_shard", 2), ("ring", 2)], "needs divides"),
        ([{"name": "dp_shard", "size": 2, "divides": "Sequence"}], "must be Batch for dp_shard"),
        ([("dp_shard", 1025)], "less than or equal to 1024"),
        ([("dp_shard", 1024), ("tp", 1024)], "at most 65536 ranks"),
        ([("dp_shard", 1), *((f"d{n}", 1) for n in range(6))], "at most 6 items"),
        ([("dp_shard", 3)], r"divide nprocPerNode \(8\)"),
        ([("DP", 2)], "should match pattern"),
        ([("d" * 17, 2)], "at most 16 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mesh_is_refused_with_the_rule_that_it_breaks(fields: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        mesh(*fields)


@pytest.mark.parametrize("beside", [{"shards": 2}, {"shards": "all"}, {"tensor": 2}])
def test_a_mesh_is_refused_beside_its_short_forms(beside: Any) -> None:
    with pytest.raises(ValidationError, match="short forms of it"):
        mesh(("dp_shard", 2), **beside)


def test_a_mesh_of_one_rank_is_a_sharded_model_so_that_the_script_has_its_mesh() -> None:
    assert spec().shape == ONE_RANK
    assert mesh(("dp_shard", 1), ("tp", 1)).shape != ONE_RANK
