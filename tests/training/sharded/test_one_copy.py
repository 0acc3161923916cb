"""One copy of the model over all ranks, whose number changes: the model is that of one process.

Promises 1, 2, 4 and 5, for ``shards: all``.
"""

from __future__ import annotations

import random
import signal
from collections import Counter

import pytest

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


def test_a_few_steps_are_repeated_if_a_worker_is_lost_with_all_its_ranks(one_copy) -> None:
    """Each rank keeps the copy of a rank of the other worker."""
    job = one_copy
    job.nproc = 2
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    pids = job.pids("a")
    job.steps(6)
    job["b"].signal(signal.SIGKILL)
    job.together("a", after=first)
    ends = job.parts("a")
    assert_same_model({"all": ends})
    assert job.pids("a") == pids, "a survivor's process changed"
    assert 0 <= job.redone() <= job.max_redone_steps


@pytest.mark.nightly
def test_training_begins_again_if_a_rank_and_its_partner_are_lost_at_once(one_copy) -> None:
    job = one_copy
    job.want(3)
    job.start("a", "b", "c")
    first = job.together("a", "b", "c")
    job.steps(6)
    job.order("die-in-backward", ("b", 0), ("c", 0))
    job.together("a", "b", "c", after=first + 1)
    ends = job.parts("a", "b", "c")
    assert_same_model({"all": ends})
    assert job.redone() >= 6


@pytest.mark.nightly
def test_a_rank_commits_late_with_the_gradients_that_it_kept_if_it_missed_the_result_of_its_vote(one_copy) -> None:
    job = one_copy
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    job.order("cut-after-vote", ("b", 0), step=job.last_step() + 4)
    second = job.together("a", "b", after=first)
    job.order("cut-before-vote", ("a", 0))
    job.together("a", "b", after=second)
    ends = job.parts("a", "b")
    assert_same_model({"all": ends})
    assert job.redone() == 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("events", [30])
def test_the_model_is_that_of_one_process_after_a_storm(one_copy, events) -> None:
    job, chance = one_copy, random.Random(11)
    steps = 10 * events
    job.want(2)
    job.start("a", "b", steps=steps)
    generation, running = job.together("a", "b"), ["a", "b"]
    names = iter("cdefghijklmnopqrstuvwxyz")
    deaths: Counter[str] = Counter()
    for _ in range(events):
        may_die = [w for w in running if deaths[w] < 4]  # an agent restarts its ranks five times within ten minutes
        what = chance.choice(
            ["grow", "drain", "die-in-forward", "die-in-backward", "cut-before-vote", "cut-after-vote"]
        )
        if what == "grow" and len(running) < 4:
            running.append(next(names))
            job.start(running[-1], steps=steps)
            job.want(len(running))
        elif what == "drain" and len(running) > 2:
            job.want(len(running) - 1, leaving=(left := running.pop(chance.randrange(len(running))),))
            assert job[left].ends().outcome == "drained"
        elif what.startswith("die") and may_die:
            deaths[victim := chance.choice(may_die)] += 1
            job.order(what, (victim, 0))
        else:
            job.order(what if what.startswith("cut") else "cut-after-vote", (chance.choice(running), 0))
        generation = job.together(*running, after=generation)
    assert_same_model({"all": job.parts(*running)}, steps)
    assert job.redone() <= job.max_redone_steps * sum(deaths.values())
