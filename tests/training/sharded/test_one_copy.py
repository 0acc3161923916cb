"""One copy of the model over all ranks, whose number changes: the model is that of one process.

Promises 1, 2, 4 and 5, for ``shards: all``.
"""

from __future__ import annotations

from sharded_model import assert_same_model


def test_the_number_of_shards_grows_and_shrinks_in_the_running_processes(one_copy) -> None:
    job = one_copy
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    pids = {w: job.pids(w) for w in "ab"}
    job.start("c")
    job.want(3)
    second = job.together("a", "b", "c", after=first)
    pids["c"] = job.pids("c")
    job.want(2, leaving=("a",))
    job.together("b", "c", after=second)
    assert job["a"].ends().outcome == "drained"
    ends = job.parts("b", "c")
    assert_same_model({"all": ends})
    assert {w: job.pids(w) for w in "abc"} == pids, "a process changed"
    job.verdict()
