"""Groups whose ranks are connected by gloo, a stock process group of torch, as NCCL connects them on GPUs.

Promises 1, 2, 4 and 5. A group of two workers of one rank each: ``a0`` and ``a1`` are group a.
"""

from __future__ import annotations

import signal

import pytest

from elastrain.api import names
from sharded_model import STEPS, alone, assert_same_model

GLOO = {names.ENV_BACKEND: "gloo", "OWN_CALLS": "1"}
A, B = ("a0", "a1"), ("b0", "b1")


def test_the_model_is_that_of_one_process_through_growth_a_killed_a_frozen_and_a_drained_rank(groups) -> None:
    job, delay = groups, 0.5
    job.want(1)
    job.start(*A, delay=delay, **GLOO)
    first = job.together(*A)
    pids = {w: job.pids(w) for w in A}
    job.start(*B, delay=delay, **GLOO)
    job.want(2)
    second = job.together(*A, *B, after=first)
    pids["b0"] = job.pids("b0")
    job.order("die-in-backward", ("b1", 0))
    third = job.together(*A, *B, after=second)
    job.order("die-in-update", ("b1", 0))  # its mate clips meanwhile: the step counts, and its update is void
    third = job.together(*A, *B, after=third)
    assert "a rank of the group was lost in the update of the step" in job["b0"].out()
    job["b1"].signal(signal.SIGSTOP)  # its mate waits for it in a collective of gloo
    fourth = job.together(*A, after=third)
    job["b1"].signal(signal.SIGCONT)
    fifth = job.together(*A, *B, after=fourth)
    assert {w: job.pids(w) for w in pids} == pids, "a process of another worker changed"
    job.want(1, leaving=B)
    job.together(*A, after=fifth)
    ends = job.of_groups("a")
    assert_same_model(ends)
    assert all("within_groups_by=gloo" in job[w].out() for w in (*A, *B))
    expected, norms = alone(STEPS)
    for end in ends["a"]:
        assert end["norms"] == pytest.approx(norms, rel=1e-9)
        for name, value in expected.items():
            assert (end["full"][name] - value).abs().max() <= 1e-10, name
    job.verdict()
