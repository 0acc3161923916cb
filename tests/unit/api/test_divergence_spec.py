"""``spec.divergence`` and the settings of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from elastrain.api.settings import DivergenceSpec, RankSettings, WithoutMajority
from elastrain_resource.job.spec import JobSpec

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python"]}]}}


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


def test_replicas_are_compared_and_the_job_fails_without_a_majority_if_nothing_is_said() -> None:
    assert spec().divergence is None
    settings = RankSettings().divergence
    assert settings.every_steps > 0
    assert settings.without_majority is WithoutMajority.FAIL
    assert "divergence" not in str(RankSettings().to_environment())


def test_ranks_get_what_the_spec_says() -> None:
    divergence = spec(divergence={"everySteps": 0, "withoutMajority": "Resume"}).divergence
    assert divergence == DivergenceSpec(every_steps=0, without_majority=WithoutMajority.RESUME)
    (written,) = RankSettings(divergence=divergence).to_environment().values()
    assert RankSettings.model_validate_json(written).divergence == divergence


@pytest.mark.parametrize(
    ("divergence", "words"),
    [({"everySteps": -1}, "divergence.everySteps"), ({"withoutMajority": "Ignore"}, "'Fail' or 'Resume'")],
)
def test_a_job_is_refused_with_the_field_if_its_divergence_is_wrong(divergence: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(divergence=divergence)
