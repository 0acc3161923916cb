"""Processes die or freeze while shards move to another placement: what one rank has given up, another has not received.

Promises 2, 4 and 8, for ``shards: all``. A rank holds at a point of the move, so that all others wait for it.
"""

from __future__ import annotations

import signal

import pytest

from sharded_model import assert_same_model

nightly = pytest.mark.nightly


@pytest.fixture
def job(one_copy):
    """Three ranks train, whose snapshots count."""
    one_copy.want(3)
    one_copy.start("a", "b", "c")
    one_copy.first = one_copy.together("a", "b", "c")
    one_copy.steps(6)
    return one_copy


def leading(job) -> str:
    """The worker of rank 0, whose ranks all others meet at."""
    return job.generation().members[0].worker


def in_growth(job, held: str) -> None:
    """``d`` joins; returns when this worker's rank holds in the middle of the move."""
    orders = job.ask("hold-in-move", (held, 0))
    job.start("d")
    job.want(4)
    job.wait(f"{held} to be in the move", lambda: not orders[0].exists())


def in_drain(job, held: str, leaves: str) -> None:
    """``leaves`` gives its shard to the others; returns when this worker's rank holds in the middle of the move."""
    orders = job.ask("hold-in-move", (held, 0))
    job.want(2, leaving=(leaves,))
    job.wait(f"{held} to be in the move", lambda: not orders[0].exists())


def check(job, *workers: str) -> None:
    """The model is that of one process, and no more steps were repeated than a loss may cost."""
    assert_same_model({"all": job.parts(*workers)})
    assert 0 <= job.redone() <= job.max_redone_steps
    rescales = job.progress().rescales
    assert sum(r.lost_steps for r in rescales) == job.redone(), rescales


@pytest.mark.parametrize("held", ["source", pytest.param("receiver", marks=nightly)])
def test_all_go_on_from_snapshots_if_a_rank_is_killed_in_a_planned_growth(job, held) -> None:
    victim = "d" if held == "receiver" else next(w for w in "cba" if w != leading(job))
    pids = {w: job.pids(w) for w in "abc" if w != victim}
    in_growth(job, victim)
    job.kill(victim, 0)
    job.together("a", "b", "c", "d", after=job.first + 1)
    check(job, "a", "b", "c", "d")
    assert {w: job.pids(w) for w in pids} == pids, "a survivor's process changed"


@nightly
def test_all_go_on_from_snapshots_if_rank_0_and_its_agent_are_killed_in_a_planned_growth(job) -> None:
    victim = leading(job)
    survivors = [w for w in "abc" if w != victim]
    pids = {w: job.pids(w) for w in survivors}
    in_growth(job, victim)
    job[victim].signal(signal.SIGKILL)
    job.together(*survivors, "d", after=job.first + 1)
    check(job, *survivors, "d")
    assert {w: job.pids(w) for w in pids} == pids, "a survivor's process changed"


@nightly
def test_the_others_go_on_from_snapshots_if_the_leaver_is_killed_in_a_planned_drain(job) -> None:
    leaver = next(w for w in "cba" if w != leading(job))
    survivors = [w for w in "abc" if w != leaver]
    pids = {w: job.pids(w) for w in survivors}
    in_drain(job, leaver, leaver)
    job.kill(leaver, 0)
    job.together(*survivors, after=job.first + 1)
    check(job, *survivors)
    assert {w: job.pids(w) for w in pids} == pids, "a survivor's process changed"


@nightly
@pytest.mark.parametrize("held", ["receiver", "rank 0 and its agent"])
def test_the_leaver_gives_its_snapshots_if_a_rank_that_stays_is_killed_in_a_planned_drain(job, held) -> None:
    """The rank that is killed and the leaver held the last copies of a shard between them."""
    workers = [m.worker for m in job.generation().members]
    victim = workers[0] if held != "receiver" else workers[1]
    leaver = workers[workers.index(victim) + 1]  # keeps the copy of the victim's shard
    stays = next(w for w in workers if w not in (victim, leaver))
    pids = job.pids(stays)
    in_drain(job, victim, leaver)
    if held == "receiver":
        job.kill(victim, 0)
    else:
        job[victim].signal(signal.SIGKILL)
    job.wait("the leaver to end", lambda: job[leaver].process.poll() is not None)
    assert job[leaver].ends().outcome == "drained"
    rest = [stays] if held != "receiver" else [victim, stays]
    job.together(*rest, after=job.first + 1)
    check(job, *rest)
    assert job.pids(stays) == pids, "a survivor's process changed"


@nightly
def test_the_others_go_on_from_snapshots_if_a_rank_freezes_in_a_planned_growth(job) -> None:
    """The thawed one finds that it is another's member no more, and joins."""
    victim = next(w for w in "cba" if w != leading(job))
    others = [w for w in "abc" if w != victim]
    pids = {w: job.pids(w) for w in others}
    in_growth(job, "d")
    job[victim].signal(signal.SIGSTOP)
    job.kill("d", 0)
    second = job.together(*others, "d", after=job.first + 1)
    job[victim].signal(signal.SIGCONT)
    job.together("a", "b", "c", "d", after=second)
    check(job, "a", "b", "c", "d")
    assert {w: job.pids(w) for w in pids} == pids, "a survivor's process changed"
