"""All nodes are drained at once: the last copy of the state stays until another worker holds it."""

from __future__ import annotations

from unittest import mock

import pytest

from elastrain_operator.facts import DisruptionBudget
from elastrain_operator.policy.size import protection as budgets
from sim.drains import drained
from sim.invariants import Violation

SEEDS, NIGHTLY_SEEDS = range(25), range(200)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)], ids=len)
def test_state_survives_a_drain_of_all_nodes_at_once(seeds):
    ends = {seed: drained(seed) for seed in seeds}
    several = [d for d in ends.values() if len(d.pods) > 1]
    assert len(several) > len(seeds) / 3, "the schedules have jobs of several workers"
    assert any(d.refused for d in several), "evictions had to wait"
    stuck = [seed for seed, d in ends.items() if d.left and d.workers > 1]
    assert not stuck, "a drain ends once another worker holds the state"
    alone = [d for d in ends.values() if len(d.pods) == 1]
    assert any(d.left for d in alone), "the only worker of a job without checkpoints stays"


def test_state_is_lost_without_the_budget():
    with mock.patch.object(budgets, "disruption_budget", lambda *_: DisruptionBudget()), pytest.raises(Violation):
        for seed in SEEDS:
            drained(seed)
