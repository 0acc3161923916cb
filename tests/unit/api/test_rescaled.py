"""The sentence of the event Rescaled: written and read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.records import PHASES
from elastrain_resource import rescaled
from elastrain_resource.job import LastRescale

REASONS = st.sampled_from(["Grow", "Drain", "Lost", "Broken", "Replace"])
PHASE_SECONDS = st.dictionaries(st.sampled_from(PHASES), st.integers(0, 10**6).map(lambda n: n / 1000))


@given(st.integers(0, 4096), st.integers(1, 4096), REASONS, st.integers(0, 10**6), st.integers(0, 10**6), PHASE_SECONDS)
def test_a_written_sentence_is_read_back(
    before: int, after: int, reason: str, pause: int, lost: int, phases: dict[str, float]
) -> None:
    rescale = LastRescale(
        from_=before, to=after, reason=reason, pause_seconds=pause / 100, lost_steps=lost, phases=phases
    )
    assert rescaled.read(rescaled.tell(rescale)) == rescale


def test_the_sentence_reads_well() -> None:
    grown = LastRescale(
        from_=2, to=3, reason="Grow", pause_seconds=0.314, lost_steps=0, phases={"transfer": 0.035, "first_step": 0.25}
    )
    assert (
        rescaled.tell(grown)
        == "from 2 to 3 ranks (Grow), pause 0.31 s (transfer 35 ms, first step 250 ms), 0 steps lost"
    )


@pytest.mark.parametrize("words", ["", "from 2 to 3", "from 2 to 3 ranks (Grow), pause 0.31 s, 0 steps lost\nand more"])
def test_another_sentence_gives_none(words: str) -> None:
    assert rescaled.read(words) is None
