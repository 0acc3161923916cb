"""Layers that branch on values: routed experts that are computed again in the backward."""

import pytest

from sharded_model import assert_same_model

WIDTH = 99
"""Marks the reference of this model; it has no such layer."""


@pytest.fixture(autouse=True)
def experts(monkeypatch) -> None:
    monkeypatch.setenv("EXPERTS", "1")  # for the reference in this process, too


@pytest.mark.parametrize(("kills", "steps"), [(1, 40), pytest.param(5, 200, marks=pytest.mark.nightly)])
def test_survivors_keep_their_processes_and_the_model_is_that_of_one_process_if_a_rank_dies_in_a_backward(
    job, kills, steps
) -> None:
    """The survivors' recomputed router sees stand-ins, and may choose other experts than in the forward. A worker
    may start a rank again 5 times."""
    job.want(2)
    job.start("a", "b", EXPERTS="1", steps=steps, delay=0.3 if kills == 1 else 0.1)
    generation = job.together("a", "b")
    pids = {w: job.pids(w) for w in "ab"}
    for _ in range(kills):
        job.order("die-before-backward", ("b", 1))
        generation = job.together("a", "b", after=generation)
    ends = job.finish("a", "b")
    assert_same_model(ends, steps, width=WIDTH)
    assert {w: job.pids(w)["0"] for w in "ab"} == {w: pids[w]["0"] for w in "ab"}, "a survivor's process changed"
    assert job.pids("a") == pids["a"]
    job.verdict()
