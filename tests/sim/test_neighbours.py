"""A job of high priority beside the minimum of another one: the scheduler evicts no worker for it."""

from __future__ import annotations

from unittest import mock

import pytest

from elastrain_operator.policy.size import sizes
from sim.invariants import Violation
from sim.neighbours import disturbed
from sim.operator import Inventory

SEEDS, NIGHTLY_SEEDS = range(25), range(400)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)], ids=len)
def test_no_pending_pod_of_a_job_has_another_s_minimum_evicted(seeds):
    assert sum(disturbed(seed) for seed in seeds) > len(seeds) / 4


@pytest.mark.parametrize(("of", "what", "answer"), [(Inventory, "preempts", False), (sizes, "free_places", None)])
def test_the_minimum_is_evicted_if_pods_without_a_place_are_created(of, what, answer):
    with mock.patch.object(of, what, lambda *_: answer), pytest.raises(Violation, match="promise 17"):
        for seed in SEEDS:
            disturbed(seed)
