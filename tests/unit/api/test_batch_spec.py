"""``spec.batch``: which bounds are accepted, and what reaches the ranks and the status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from elastrain.api.batch import BatchFigures
from elastrain.api.records import Progress
from elastrain.api.settings import BatchSettings, LearningRate, RankSettings, ShareRule
from elastrain_resource.job import JobSpec

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python"]}]}}
BOUNDS = {"min": 32, "max": 256, "learningRate": "AdaScale"}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


def test_ranks_get_no_batch_if_the_spec_has_none() -> None:
    assert spec().batch is None
    assert spec().rank_settings(1).batch is None
    assert "batch" not in str(RankSettings().to_environment())


def test_ranks_get_the_bounds_and_how_many_they_are_at_least() -> None:
    settings = spec(minReplicas=2, batch=BOUNDS).rank_settings(4).batch
    assert settings == BatchSettings(min=32, max=256, learning_rate=LearningRate.ADA_SCALE, least_ranks=8)
    (written,) = RankSettings(batch=settings).to_environment().values()
    assert RankSettings.model_validate_json(written).batch == settings


def test_ranks_may_choose_their_batch_and_measure_their_shares() -> None:
    assert spec(shares="Measured", batch=BOUNDS).shares is ShareRule.MEASURED


def test_ranks_get_the_shares_of_the_spec() -> None:
    assert spec().shares is ShareRule.EQUAL
    given = spec(shares="Measured", maxShare=1.5, parallelism={"shards": 2}, nprocPerNode=2)
    settings = RankSettings(shares=given.shares, max_share=given.max_share, shards=2)
    (written,) = settings.to_environment().values()
    assert RankSettings.model_validate_json(written) == settings


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": {**BOUNDS, "max": 31}}, r"must not be less than batch\.min \(32\)"),
        ({"batch": {**BOUNDS, "min": 0}}, "batch.min"),
        ({"batch": {"min": 1, "max": 2}}, "batch.learningRate"),
        ({"batch": {**BOUNDS, "learningRate": "linear"}}, "'AdaScale', 'SquareRoot', 'Linear' or 'Unchanged'"),
        ({"batch": BOUNDS, "parallelism": {"shards": "all"}}, "must be absent if parallelism.shards is not 1"),
        ({"batch": BOUNDS, "parallelism": {"shards": 2}, "nprocPerNode": 2}, "must be absent if parallelism.shards"),
        ({"shares": "measured"}, "'Equal' or 'Measured'"),
        ({"shares": "Measured", "parallelism": {"shards": "all"}}, r"if parallelism\.shards is all"),
        ({"shares": "Measured", "parallelism": {"mesh": [{"name": "dp_shard", "size": 1}]}}, "or with a mesh"),
        ({"maxShare": 2}, "must be absent if shares is Equal"),
        ({"shares": "Measured", "maxShare": 0.9}, "maxShare"),
    ],
)
def test_a_job_is_refused_with_the_rule_if_its_batch_breaks_one(fields: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(**fields)


def test_a_report_of_an_older_runtime_has_no_batch() -> None:
    report = Progress(generation=1, world_size=1, members=1, step=4)
    assert Progress.decode(report.encode()).batch is None
    figures = BatchFigures(samples=64, noise_scale=512.0)
    assert Progress.decode(report.model_copy(update={"batch": figures}).encode()).batch == figures
