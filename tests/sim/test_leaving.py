"""Pods that stay terminating: nothing waits for them beyond their deadline without naming them."""

from __future__ import annotations

from unittest import mock

import pytest

from elastrain_operator.pod import leaving
from sim.invariants import Violation
from sim.leaving import hung

SEEDS, NIGHTLY_SEEDS = range(25), range(400)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)], ids=len)
def test_nothing_waits_for_an_overdue_pod_without_naming_it(seeds):
    named = set().union(*(hung(seed) for seed in seeds))
    assert named >= {"PodsReady", "Suspended", "Drained"}, "a suspension ends beside a pod of a dead node"


def test_conditions_wait_in_silence_without_the_deadline():
    with mock.patch.object(leaving, "overdue_words", lambda _: ""), pytest.raises(Violation, match="promise 8"):
        for seed in SEEDS:
            hung(seed)
