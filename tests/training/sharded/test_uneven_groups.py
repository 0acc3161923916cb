"""Groups of unequal speed with ``spec.shares: Measured``: each has one share, and the model is that of one process."""

from __future__ import annotations

from collections import defaultdict

import pytest

from elastrain.api.settings import ShareRule
from sharded_model import assert_same_model

BATCH = 11
LONG = 120
"""Steps of a job in which groups join and die."""


def samples_by_group(job) -> list[dict[str, int]]:
    """Of each committed step; fails the test if ranks of one group had different weights."""
    steps: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in job.commits():
        steps[line["step"]][line["worker"][0]] += len(line["indices"])
        weights = line["share"][2]
        assert weights[::2] == weights[1::2]
    return [steps[number] for number in sorted(steps)]


def last_share(job, group: str) -> int:
    """Samples of the group in the newest step of which all parts are known; the batch if there is none."""
    whole = [each for each in samples_by_group(job) if sum(each.values()) == BATCH]
    return whole[-1].get(group, BATCH) if whole else BATCH


@pytest.mark.nightly
@pytest.mark.parametrize(("micro", "time"), [("2", "SAMPLE"), pytest.param("11", "SLEEP", id="in real time")])
def test_a_slow_group_computes_fewer_samples_and_the_model_is_that_of_one_process(job, micro, time) -> None:
    job.shares = ShareRule.MEASURED
    job.want(2)
    job.start("a", delay=0.0, MICRO=micro, **{time: "0.02"})
    job.start("b", delay=0.0, MICRO=micro, **{time: "0.08"})
    ends = job.finish("a", "b")
    assert_same_model(ends)
    job.verdict()
    whole = [each for each in samples_by_group(job) if len(each) == 2 and sum(each.values()) == BATCH]
    assert whole[0]["b"] >= 5 and whole[-1]["b"] <= 3, "a fifth belongs to it, and each of its ranks has a sample"


@pytest.mark.nightly
def test_the_model_is_that_of_one_process_if_a_group_joins_and_another_dies_while_shares_differ(job) -> None:
    job.shares = ShareRule.MEASURED
    options = {"steps": LONG, "delay": 0.1, "MICRO": "2"}
    job.want(2)
    job.start("a", **options, SAMPLE="0.01")
    job.start("b", **options, SAMPLE="0.04")
    first = job.together("a", "b")
    job.wait("shares that differ", lambda: last_share(job, "b") <= 3)
    job.start("c", **options, SAMPLE="0.01")
    job.want(3)
    second = job.together("a", "b", "c", after=first)
    job.order("die-in-backward", ("b", 0), ("b", 1))
    job.together("a", "b", "c", after=second)
    ends = job.finish("a", "b", "c")
    assert_same_model(ends, LONG)
    job.verdict()
    of_three = [each for each in samples_by_group(job) if len(each) == 3 and sum(each.values()) == BATCH]
    assert len(of_three) > 20 and of_three[-1]["b"] == 2, "each of its ranks has a sample"


@pytest.mark.nightly
def test_a_group_of_workers_is_as_fast_as_its_slowest_one(groups) -> None:
    groups.shares = ShareRule.MEASURED
    groups.want(2)
    groups.start("a0", "a1", "b0", delay=0.0, SAMPLE="0.01")
    groups.start("b1", delay=0.0, SAMPLE="0.04")
    ends = groups.of_groups("a", "b")
    assert_same_model(ends)
    groups.verdict()
    whole = [each for each in samples_by_group(groups) if sum(each.values()) == BATCH]
    assert whole[0]["b"] >= 5 and whole[-1]["b"] <= 3
