"""``spec.batch``, ``shares`` and ``divergence``: what is accepted, and what reaches the ranks and the status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from elastrain.api.batch import BatchFigures
from elastrain.api.records import Progress
from elastrain.api.settings import BatchSettings, DivergenceSpec, LearningRate, RankSettings, ShareRule
from elastrain_resource.job import JobSpec

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python"]}]}}
BOUNDS = {"min": 32, "max": 256, "learningRate": "AdaScale"}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


BATCH = BatchSettings(min=32, max=256, learning_rate=LearningRate.ADA_SCALE, least_ranks=8)
RESUME = {"everySteps": 0, "withoutMajority": "Resume"}


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, RankSettings()),
        ({"minReplicas": 2, "batch": BOUNDS}, RankSettings(batch=BATCH)),
        ({"shares": "Measured", "maxShare": 1.5}, RankSettings(shares=ShareRule.MEASURED, max_share=1.5)),
        ({"divergence": RESUME}, RankSettings(divergence=DivergenceSpec.model_validate(RESUME))),
        ({"parallelism": {"shards": 4, "tensor": 2}}, RankSettings(shards=4, tensor=2)),
    ],
)
def test_ranks_get_what_the_spec_says(fields: Any, settings: RankSettings) -> None:
    given = spec(nprocPerNode=4, **fields).rank_settings(4)
    (written,) = given.to_environment().values()
    assert given == RankSettings.model_validate_json(written) == settings


def test_ranks_may_choose_their_batch_and_measure_their_shares() -> None:
    assert spec(shares="Measured", batch=BOUNDS).shares is ShareRule.MEASURED


def test_replicas_are_compared_and_the_job_fails_without_a_majority_if_nothing_is_said() -> None:
    divergence = spec().rank_settings(1).divergence
    assert divergence.every_steps > 0
    assert divergence.without_majority == "Fail"


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
        ({"divergence": {"everySteps": -1}}, "divergence.everySteps"),
        ({"divergence": {"withoutMajority": "Ignore"}}, "'Fail' or 'Resume'"),
    ],
)
def test_a_job_is_refused_with_the_rule_or_the_field_if_it_breaks_one(fields: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(**fields)


def test_a_report_of_an_older_runtime_has_no_batch() -> None:
    report = Progress(generation=1, world_size=1, members=1, step=4)
    assert Progress.decode(report.encode()).batch is None
    figures = BatchFigures(samples=64, noise_scale=512.0)
    assert Progress.decode(report.model_copy(update={"batch": figures}).encode()).batch == figures
