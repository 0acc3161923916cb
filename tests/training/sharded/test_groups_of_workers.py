"""A group of several workers, each with an agent of its own: a loss costs the step in hand, and the mates stand by.

Promises 1, 2, 4 and 5, for groups. ``a0`` and ``a1`` are the two workers of group a.
"""

from __future__ import annotations

import signal

import pytest

from elastrain.api.records import Phase
from sharded_model import assert_same_model

ALL = ("a0", "a1", "b0", "b1")


@pytest.fixture
def job(groups):
    """Two groups train."""
    groups.want(2)
    groups.start(*ALL)
    groups.first = groups.together(*ALL)
    assert sorted(groups.groups()) == ["a", "b"]
    return groups


def stands_by(job, worker: str) -> None:
    """Wait until the worker is in no generation, with its processes."""
    job.wait(
        f"{worker} to stand by",
        lambda: (
            job.members()[worker].generation == job.generation().number
            and not job.generation().member(job.members()[worker].id)
        ),
    )
    assert job.members()[worker].phase is Phase.READY


def test_the_mate_of_a_killed_worker_stands_by_and_their_group_returns_if_the_worker_is_replaced(job) -> None:
    pids = {w: job.pids(w) for w in ("a0", "a1", "b0")}
    job["b1"].signal(signal.SIGKILL)
    job.together("a0", "a1", after=job.first)
    stands_by(job, "b0")
    job.start("b1")
    job.together(*ALL, after=job.first + 1)
    assert_same_model(job.of_groups("a", "b"))
    assert {w: job.pids(w) for w in pids} == pids, "a process of another worker changed"
    job.verdict()


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_worker_whose_rank_was_killed_returns_to_its_mate(job, where) -> None:
    """Its agent starts the rank again; the mate is a rank of another agent."""
    pids = {w: job.pids(w) for w in ("a0", "a1", "b0")}
    job.order(f"die-in-{where}", ("b1", 0))
    job.together(*ALL, after=job.first)
    assert_same_model(job.of_groups("a", "b"))
    assert {w: job.pids(w) for w in pids} == pids, "a process of another worker changed"
    job.verdict()


@pytest.mark.nightly
def test_no_step_is_lost_if_one_worker_of_each_group_dies_and_they_held_other_shards(job) -> None:
    """No group is whole; the two that are left hold the whole state between them, and train together."""
    pids = {w: job.pids(w) for w in ("a0", "b1")}
    for worker in ("a1", "b0"):
        job[worker].signal(signal.SIGKILL)
    mixed = job.together("a0", "b1", after=job.first)
    job.start("a1", "b0")
    job.together(*ALL, after=mixed)
    assert_same_model(job.of_groups("a", "b"))
    assert {w: job.pids(w) for w in pids} == pids, "a process of another worker changed"
    job.verdict()


@pytest.mark.nightly
def test_a_joining_group_gets_each_shard_from_another_holder_if_its_source_dies(job) -> None:
    source = job.generation().members[0].worker
    orders = job.ask("die-as-source", (source, 0))
    job.want(3)
    job.start("j0", "j1")
    job.wait("the source to die", lambda: not orders[0].exists())
    job.together(*ALL, "j0", "j1", after=job.first + 1)
    assert_same_model(job.of_groups("a", "b", "j"))
    job.verdict()


@pytest.mark.nightly
def test_a_frozen_worker_returns_to_its_mate_if_it_thaws(job) -> None:
    """Its lease expires meanwhile."""
    pids = {w: job.pids(w) for w in ALL}
    job["b1"].signal(signal.SIGSTOP)
    job.together("a0", "a1", after=job.first)
    stands_by(job, "b0")
    job["b1"].signal(signal.SIGCONT)
    job.together(*ALL, after=job.first + 1)
    assert_same_model(job.of_groups("a", "b"))
    assert {w: job.pids(w) for w in pids} == pids, "a process changed"
    job.verdict()
