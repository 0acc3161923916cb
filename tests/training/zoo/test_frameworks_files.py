"""What frameworks leave in their folders, if ranks come, are killed and leave at random moments."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_lightning_leaves_the_files_of_an_undisturbed_run(survives, seed) -> None:
    survives("lightning_files", seed=seed, path=HERE / "train_lightning_files.py")
