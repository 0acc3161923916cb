"""All agents of a job are stopped, and others begin: the old generation commits no step beside the new one."""

from __future__ import annotations

import pytest

from sim.bugs import present
from sim.frozen import stopped
from sim.invariants import Violation

SEEDS = range(12)


def test_only_one_generation_trains_if_all_agents_are_stopped_and_another_worker_begins():
    assert sum(stopped(seed) for seed in SEEDS) >= len(SEEDS) / 3, "others must have begun in some of the schedules"


def test_two_generations_train_if_ranks_commit_without_their_agents_vouch():
    with present("ranks_commit_without_their_agents_vouch"), pytest.raises(Violation, match="promise 6"):
        for seed in SEEDS:
            stopped(seed)
