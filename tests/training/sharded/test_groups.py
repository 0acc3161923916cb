"""Groups of ranks that hold a sharded model together come, go and die: the model is that of one process.

Promises 1, 2, 4 and 5, for groups.
"""

from __future__ import annotations

import random

import pytest

from elastrain.api import names
from sharded_model import STEPS, alone, assert_same_model


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.nightly), "backward"])
def test_a_group_that_lost_a_rank_or_all_returns_and_the_other_trains_on_in_its_processes(job, where) -> None:
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    survivors, mates = job.pids("a"), job.pids("b")
    job.order(f"die-in-{where}", ("b", 1))
    second = job.together("a", "b", after=first)
    assert job.pids("b")["0"] == mates["0"], "the process of the lost rank's mate changed"
    assert job.pids("b")["1"] != mates["1"]
    job.order(f"die-in-{where}", ("b", 0), ("b", 1))
    job.together("a", "b", after=second)
    ends = job.finish("a", "b")
    assert_same_model(ends)
    assert job.pids("a") == survivors, "a survivor's process changed"
    for end in ends["a"]:
        assert end["norms"] == pytest.approx(alone(STEPS)[1][-len(end["norms"]) :], rel=1e-9)
    job.verdict()


@pytest.mark.nightly
def test_no_step_is_trained_again_if_rank_0_is_killed_behind_the_training(job) -> None:
    """Each rank of the other group keeps its shard while its process starts again."""
    job.want(2)
    job.start("a", "b")
    job.together("a", "b")
    job.ask("die-behind-training", (job.generation().members[0].worker, 0))
    ends = job.finish("a", "b")
    assert_same_model(ends)
    assert [end["commits"] for parts in ends.values() for end in parts] == [[]] * 4, "a process did not start again"
    job.verdict()


@pytest.mark.nightly
def test_the_remaining_group_trains_on_if_ranks_of_two_others_die_in_one_step(job) -> None:
    job.want(3)
    job.start("a", "b", "c")
    first = job.together("a", "b", "c")
    pids = job.pids("a")
    job.order("die-in-backward", ("b", 0), ("c", 1))
    job.together("a", "b", "c", after=first)
    assert_same_model(job.finish("a", "b", "c"))
    assert job.pids("a") == pids
    job.verdict()


def test_ranks_commit_late_if_they_missed_the_result_of_their_vote_and_none_commits_if_one_has_not_voted(job) -> None:
    """Late with the gradients that they kept: no rank that has the result holds their shard of the step."""
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    pids = {w: job.pids(w) for w in "ab"}
    job.order("cut-after-vote", ("a", 1), ("b", 1), step=job.last_step() + 4)
    second = job.together("a", "b", after=first)
    assert all("end a step whose sum they have missed" in job[w].out() for w in "ab")
    job.order("cut-before-vote", ("a", 1))
    job.together("a", "b", after=second)
    ends = job.finish("a", "b")
    assert_same_model(ends)
    assert {w: job.pids(w) for w in "ab"} == pids, "a process changed"
    assert [e["commits"] for shards in ends.values() for e in shards] == [[*range(1, STEPS + 1)]] * 4
    job.verdict()


@pytest.mark.nightly
def test_a_joining_group_gets_each_shard_from_another_holder_if_its_source_dies(job) -> None:
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    source = job.generation().members[0].worker
    (other,) = {"a", "b"} - {source}
    pids = job.pids(other)
    orders = job.ask("die-as-source", (source, 1))
    job.want(3)
    job.start("j")
    job.wait("the source to die", lambda: not orders[0].exists())
    job.together("a", "b", "j", after=first + 1)
    ends = job.finish("a", "b", "j")
    assert_same_model(ends)
    assert job.pids(other) == pids, "the survivor's process changed"
    job.verdict()


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("events", [30])
@pytest.mark.parametrize("shape", [1, 2], ids=["shards", "two by two ranks over gloo"])
def test_the_model_is_that_of_one_process_after_a_storm(request, shape, events) -> None:
    job = request.getfixturevalue("job" if shape == 1 else "tensor_job")
    options = {} if shape == 1 else {names.ENV_BACKEND: "gloo", "WIDTH": "14"}
    job.nproc = 2 * shape
    chance = random.Random(7)
    steps = 10 * events
    job.want(2)
    job.start("a", "b", steps=steps, **options)
    generation = job.together("a", "b")
    deaths = dict.fromkeys("ab", 4)  # an agent restarts its ranks five times within ten minutes
    for _ in range(events):
        worker, local = chance.choice("ab"), chance.randrange(job.nproc)
        if deaths[worker] and chance.random() < 0.5:
            deaths[worker] -= 1
            what = chance.choice(["die-in-forward", "die-in-backward"])
        else:
            what = chance.choice(["cut-before-vote", "cut-after-vote"])
        job.order(what, (worker, local))
        generation = job.together("a", "b", after=generation)
    assert_same_model(job.finish("a", "b"), steps, tensor=shape, width=12 + shape)
    job.verdict()
