"""Two operators over one namespace, each with its own etcd, by the product's loops under one clock."""

from __future__ import annotations

from unittest import mock

import pytest

from elastrain_operator.policy import elsewhere
from sim.invariants import Violation
from sim.rivals import shared

SEEDS, NIGHTLY_SEEDS = range(25), range(1000)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)], ids=len)
def test_a_job_never_has_workers_of_two_operators_and_is_never_left_to_neither(seeds):
    ends = [shared(seed) for seed in seeds]
    assert sum(len(e.takers) > 1 for e in ends) > len(seeds) / 5, "jobs go from one operator to the other"
    assert sum(e.both for e in ends) > len(seeds), "both operators run as workers are created"


def test_a_job_gets_workers_of_two_operators_without_the_claim():
    with mock.patch.object(elsewhere, "followed", lambda *_, **__: None), pytest.raises(Violation):
        for seed in SEEDS:
            shared(seed)
