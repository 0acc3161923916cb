"""Scripts in the shapes that people copy, on a fast and a slow rank: shares follow the speeds, and the result is that
of equal shares."""

from __future__ import annotations

import pytest

from differences import differences
from elastrain.api.settings import RankSettings, ShareRule

SHAPES = ("nanogpt", "mnist", "dcgan", "hf_causal_lm", "accelerate_loop", "lightning_trainer")
"""Micro-batches in an own loop, bitwise, several backwards, and the loops of three frameworks."""
MEASURED = RankSettings(shares=ShareRule.MEASURED).to_environment()


def part_of(job, worker: str) -> float:
    """Of the samples of the last third of the steps."""
    counts: dict[int, dict[str, int]] = {}
    for line in job.commits():
        counts.setdefault(line["step"], {})[line["worker"]] = len(line["indices"])
    late = [counts[step] for step in sorted(counts)[-len(counts) // 3 :]]
    return sum(step[worker] for step in late) / sum(sum(step.values()) for step in late)


@pytest.mark.nightly
@pytest.mark.parametrize("script", SHAPES)
def test_script_ends_as_with_equal_shares_if_one_of_two_ranks_is_slow(zoo_job, script) -> None:
    equal, measured = zoo_job(script), zoo_job(script, **MEASURED)
    for job in (equal, measured):
        job.want(2)
    equal.add(2)
    expected = equal.finished()
    measured.add(SAMPLE="0.002")
    measured.add(SAMPLE="0.008")
    found = measured.finished()
    apart = list(differences(expected, found, atol=0.0 if script == "mnist" else 1e-10))
    assert not apart, "\n".join(apart[:20])
    assert part_of(equal, "w1") == pytest.approx(0.5, abs=0.02)
    assert part_of(measured, "w1") <= 0.35, "a fifth belongs to it"
