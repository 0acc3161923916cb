"""Evidence that lies lets no two generations commit, and passes no live member over."""

from __future__ import annotations

import pytest

from sim.bugs import present
from sim.evidence import lied
from sim.invariants import Violation

SEEDS, NIGHTLY_SEEDS = 12, 1000
FINDS = 17
"""A seed in which the former rule, by which a refused probe outweighed a live lease, loses a committed step."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)])
def test_no_reset_or_cut_lets_two_generations_train_or_a_step_be_lost(seeds):
    runs = [lied(seed) for seed in range(seeds)]
    assert sum(r.resets for r in runs) > seeds / 2 and sum(r.kills for r in runs) > seeds / 8


def test_a_step_is_lost_if_a_reset_outweighs_a_lease():
    with present("a_reset_outweighs_a_lease"), pytest.raises(Violation, match="promise 5"):
        lied(FINDS)
    lied(FINDS)
