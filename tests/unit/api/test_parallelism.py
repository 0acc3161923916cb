"""``spec.parallelism``: which jobs of sharded models are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from elastrain.api.job import JobSpec
from elastrain.api.settings import RankSettings

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
    assert spec().max_redone_steps == spec(parallelism={"shards": "all"}).max_redone_steps == 20
    assert RankSettings().max_redone_steps == 20
    assert spec(parallelism={"shards": "all", "maxRedoneSteps": 0}).max_redone_steps == 0


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_part_of_a_group_or_all_of_it_may_compute_layers_together(tensor: int) -> None:
    assert spec(nprocPerNode=4, parallelism={"shards": 4, "tensor": tensor}).tensor == tensor


def test_ranks_get_the_shape_of_their_group() -> None:
    (written,) = RankSettings(shards=4, tensor=2).to_environment().values()
    read = RankSettings.model_validate_json(written)
    assert (read.shards, read.tensor) == (4, 2)
