"""What frameworks leave, if ranks come, are killed and leave at random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_lightning_leaves_the_files_of_an_undisturbed_run(survives, seed) -> None:
    survives("lightning_files", seed=seed, path=HERE / "train_lightning_files.py")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_trls_dpo_ends_with_the_model_of_an_undisturbed_run(survives, seed) -> None:
    """TRL's fused head computes in float32."""
    survives("dpo", seed=seed, path=HERE / "train_dpo.py", atol=1e-7)
