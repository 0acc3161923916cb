"""The work of a pass grows with the workers, not with their square: counted in calls, so that no clock decides."""

from __future__ import annotations

import cProfile
import pstats
from datetime import timedelta

import pytest

from job_world import JobWorld

SMALL, LARGE = 100, 400


class Job(JobWorld):
    """A job of so many workers that train."""

    def __init__(self, workers: int) -> None:
        super().__init__(replicas=workers, maxReplicas=workers, maxUnavailable=workers // 20)
        for _ in range(3):
            self.cycle()
        assert len(self.training()) == workers

    def cycle(self) -> None:
        self.operate()
        self.kubelet()
        self.agents()
        self.now += timedelta(seconds=1)

    def lose(self) -> None:
        for name in list(self.pods)[: len(self.pods) // 10]:
            self._vanish(name)

    def roll_out(self) -> None:
        self.image = "b"
        self.cycle()

    def rest(self) -> None:
        """Nothing happens."""

    def suspend(self) -> None:
        self.fields = {**self.fields, "suspend": True}


def calls(workers: int, what: str) -> int:
    """Calls of the pass after ``what``."""
    job, profile = Job(workers), cProfile.Profile()
    getattr(job, what)()
    profile.runcall(job.operate)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["rest", "lose", "roll_out", "suspend"])
def test_a_pass_of_four_times_the_workers_makes_at_most_six_times_the_calls(what: str) -> None:
    assert calls(LARGE, what) <= 6 * calls(SMALL, what)
