"""A worker is stopped (SIGSTOP) beyond the TTL of its lease, and others begin without it. Promise 6 holds."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

FAKE_RANK = Path(__file__).parents[2] / "shared" / "fake_rank.py"


@pytest.mark.parametrize("stopped", ["agent and rank", "agent"])
def test_no_step_is_committed_beside_a_later_generation_if_a_worker_that_trained_alone_was_stopped(job, stopped):
    job.want(1)
    job.start("a")
    first = job.together("a")
    pids = [p.pid for p in job["a"].children()] if stopped == "agent and rank" else []
    pids.append(job["a"].process.pid)  # the last to go on, when the rank has had time for a step
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    job.start("b", command=[sys.executable, str(FAKE_RANK)], FAKE_RANK_TRAIL=str(job.folder))
    job.wait("generation 2", lambda: job.generation().number > first)
    before = job.last_step()
    job.wait("b to train in it", lambda: job.progress().generation > first)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    job.wait("a to leave its generation", lambda: "generation is broken" in job["a"].out())
    assert job.last_step() == before, "a step beside the generation of b"
    assert ("the agent has not vouched" in job["a"].out()) == (stopped == "agent"), "the rank stopped by itself"
