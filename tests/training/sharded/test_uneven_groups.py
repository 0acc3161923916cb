"""Groups of unequal speed with ``spec.shares: Measured``: each has one share, and the model is that of one process."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from elastrain.api.settings import ShareRule
from sharded_model import assert_same_model

BATCH = 11


def samples_by_worker(job) -> list[dict[str, int]]:
    """Of each committed step; fails the test if ranks of one group had different weights."""
    steps: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for file in job.audit.glob("*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["kind"] == "commit":
                steps[line["step"]][line["worker"]] += len(line["indices"])
                weights = line["share"][2]
                assert weights[::2] == weights[1::2]
    return [steps[number] for number in sorted(steps)]


@pytest.mark.parametrize("micro", [pytest.param("11", marks=pytest.mark.nightly, id="one body"), "2"])
def test_a_slow_group_computes_fewer_samples_and_the_model_is_that_of_one_process(job, micro) -> None:
    job.shares = ShareRule.MEASURED
    job.want(2)
    job.start("a", delay=0.0, SAMPLE="0.005", MICRO=micro)
    job.start("b", delay=0.0, SAMPLE="0.02", MICRO=micro)
    ends = job.finish("a", "b")
    assert_same_model(ends)
    job.verdict()
    whole = [each for each in samples_by_worker(job) if len(each) == 2 and sum(each.values()) == BATCH]
    assert whole[0]["b"] >= 5 and whole[-1]["b"] <= 3, "a fifth belongs to it, and each of its ranks has a sample"
