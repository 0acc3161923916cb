"""The batch in words."""

from __future__ import annotations

import pytest

from elastrain.api.batch import BatchFigures, LargerBatch
from elastrain_resource.sizing.describe import batch_line, why_this_batch

FULL = BatchFigures(samples=128, base=64, noise_scale=1133.0, larger=LargerBatch(samples=256, gain=-0.046))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (FULL, "batch 128 (2 x 64), noise scale 1,133, efficiency 0.95, 256 would lose 5%"),
        (BatchFigures(samples=64, base=64), "batch 64"),
        (BatchFigures(samples=2048), "batch 2,048"),
    ],
)
def test_a_line_has_what_is_known(batch, words):
    assert batch_line(batch) == words


@pytest.mark.parametrize(
    ("batch", "says", "change"),
    [
        (FULL, "256 would lose 5% of goodput, and a change needs 7%", ""),
        (FULL.model_copy(update={"larger": None}), "a larger one is compared when", ""),
        (FULL.model_copy(update={"larger": None, "samples": 512}), "it is the largest", "raise spec.batch.max"),
        (BatchFigures(samples=64, base=64), "until the noise scale of the gradients is measured", "micro_batch_size"),
        (None, "not reported yet", ""),
    ],
)
def test_the_reason_of_a_batch_names_what_would_change_it(batch, says, change):
    reason, remedy = why_this_batch(batch, 64, 512)
    assert says in reason
    assert "rank 0" in reason
    assert change in remedy
    assert bool(change) == bool(remedy)
