"""Granted workers that never become bound pods: other jobs get their room back, and the condition names the cause."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import datetime, timedelta

import pytest

from elastrain_operator.allocation import promise
from elastrain_operator.allocation.snapshot import Job, Obstacle, Share, Worker
from shared_cluster import ONE, START, Cluster


def test_a_refused_job_costs_no_other_job_a_worker():
    cluster = Cluster()
    cluster.arrive("a", 1, 8)
    cluster.run(5)
    assert cluster.bound("a") == 8
    cluster.arrive("b", 7, 7, fault="refused", priority=100)
    cluster.step = 10
    cluster.run(3600)
    cluster.step = 1
    assert min(cluster.sizes["a"][10:]) == 8, "no worker ever left for it"
    share = cluster.shares["b"]
    assert (share.size, share.reason, share.message) == (
        0,
        "GrantUnused",
        "waits: the API server refuses its pods: refused: by this cluster",
    )
    cluster.jobs["b"].fault = ""
    cluster.run(5)
    assert cluster.bound("b") == 7, "it starts when the policy has changed"


def test_room_is_not_kept_for_a_job_whose_pods_are_refused():
    """It was granted free room, which needs no dry run."""
    cluster = Cluster()
    cluster.arrive("b", 7, 7, fault="refused")
    cluster.run(2)
    cluster.arrive("a", 1, 8)
    cluster.run(5)
    assert cluster.bound("a") == 8


def test_an_unschedulable_job_gives_the_room_back_and_backs_off():
    cluster = Cluster()
    cluster.arrive("a", 1, 8)
    cluster.run(5)
    cluster.arrive("b", 7, 7, fault="unschedulable")
    cluster.step = 5
    cluster.run(7200)
    cluster.step = 1
    sizes = cluster.sizes["a"]
    assert sizes[-1] == 8
    idle = sum(8 - n for n in sizes) / len(sizes)
    assert idle < 0.7, "of eight devices, over two hours, in ever rarer attempts"
    assert cluster.shares["b"].reason == "GrantUnused"
    assert "granted again at 2030-01-01T0" in cluster.shares["b"].message
    cluster.jobs["b"].fault = ""
    cluster.run(int(promise.MOST_BACKOFF) + 5)
    assert (cluster.bound("a"), cluster.bound("b")) == (1, 7), "the next attempt succeeds"


def test_a_training_job_keeps_its_workers_if_it_cannot_use_more():
    cluster = Cluster()
    a = cluster.arrive("a", 2, 8)
    a.spec = dataclasses.replace(a.spec, cap=2)
    cluster.run(5)
    a.fault, a.spec = "unschedulable", dataclasses.replace(a.spec, cap=8)
    cluster.arrive("b", 1, 8)
    cluster.run(int(promise.HINDERED_SECONDS) + 10)
    assert (cluster.bound("a"), cluster.bound("b")) == (2, 6)
    assert cluster.shares["a"].size == 2
    assert cluster.shares["a"].message.startswith(
        "not grown: granted workers beyond 2 could not be used: unschedulable"
    )


def test_a_training_job_below_its_minimum_keeps_its_size_but_no_room():
    cluster = Cluster()
    a = cluster.arrive("a", 4, 4)
    cluster.run(5)
    a.fault = "unschedulable"
    a.workers = dict(list(a.workers.items())[:1])
    cluster.arrive("b", 1, 8)
    cluster.run(int(promise.HINDERED_SECONDS) + 10)
    assert cluster.shares["a"].size == 4, "its missing workers stay Pending"
    assert (cluster.bound("a"), cluster.bound("b")) == (1, 7)


def job(bound: int, **fields) -> Job:
    workers = tuple(Worker(f"w{i}", "n", ONE.demand) for i in range(bound))
    return Job("a", "ns", "a", 1, 8, ONE, workers=workers, **{"generation": 1, **fields})


def after(*looks: tuple[float, Job, int]) -> promise.Promise:
    made = None
    for second, seen, granted in looks:
        made = promise.after(made, seen, granted, START + timedelta(seconds=second))
    assert made is not None
    return made


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def test_a_grant_expires_later_without_a_known_cause():
    slow = after((0, job(0), 2), (299, job(0), 2))
    assert promise.usable(slow, at(299)) is None
    assert promise.usable(after((0, job(0), 2), (300, job(0), 2)), at(300)) == 0
    assert promise.usable(after((0, job(0), 2), (60, job(0, hindered=True), 2)), at(60)) == 0


def test_each_bound_worker_renews_the_grant():
    made = after(*((50.0 * n, job(n, hindered=True), 8) for n in range(8)))
    assert promise.usable(made, at(350)) is None


def test_the_time_stands_while_losses_delay_the_next_worker():
    made = after((0, job(0, paced=True), 2), (500, job(0, paced=True), 2), (510, job(0), 2))
    assert promise.usable(made, at(510)) is None


def test_a_changed_spec_is_tried_at_once():
    expired = after((0, job(0, hindered=True), 2), (60, job(0, hindered=True), 2))
    assert promise.usable(expired, at(61)) == 0
    again = promise.after(expired, job(0, generation=2), 0, at(61))
    assert promise.usable(again, at(61)) is None


def test_an_earlier_refusal_does_not_end_a_new_grant():
    before = job(0, refused=START - timedelta(seconds=5))
    assert promise.usable(after((0, before, 2), (1, before, 2)), at(1)) is None
    assert promise.usable(after((0, before, 2), (3, job(0, refused=at(2)), 2)), at(3)) == 0


@pytest.mark.parametrize(("times", "seconds"), [(1, 60), (2, 120), (3, 240), (9, 1800)])
def test_the_back_off_doubles_up_to_half_an_hour(times, seconds):
    made, second = None, 0.0
    for _ in range(times):
        made = promise.after(made, job(0, hindered=True), 2, at(second))
        made = promise.after(made, job(0, hindered=True), 2, at(second + 60))
        until = made.until
        assert until is not None
        waited = (until - at(second + 60)).total_seconds()
        second = (until - START).total_seconds()
    assert waited == seconds


QUOTA = Obstacle("QuotaExceeded", "exceeded quota: gpus", refused=True)


def test_a_minimum_of_which_a_part_is_bound_again_and_again_backs_off_longer_each_time():
    """A quota admits two of three: they are bound, the third is refused, all are released."""
    made, second, waits = None, 0.0, []
    for _ in range(4):
        made = promise.after(made, partly(0), 3, at(second))
        made = promise.after(made, partly(2), 3, at(second + 1))
        made = promise.after(made, partly(2, refused=at(second + 3)), 3, at(second + 3), obstacle=QUOTA)
        assert (made.usable, made.obstacle) == (0, QUOTA)
        waits.append((made.until - at(second + 3)).total_seconds())
        second = (made.until - START).total_seconds()
    assert waits == [60, 120, 240, 480]


def test_a_whole_minimum_ends_the_back_off_and_its_cause():
    made = after((0, partly(0), 3), (1, partly(2), 3))
    made = promise.after(made, partly(2, refused=at(3)), 3, at(3), obstacle=QUOTA)
    made = promise.after(made, partly(0), 3, at(64))
    made = promise.after(made, partly(3), 3, at(65))
    assert (made.failures, made.usable, made.obstacle) == (0, None, None)


def partly(bound: int, **fields) -> Job:
    return dataclasses.replace(job(bound, **fields), min=3)


def test_the_cause_of_an_expired_grant_is_kept_while_it_lasts():
    """The pods are gone, and with them what the API server has said of them."""
    promises = promise.Promises()
    given = Share(3, "AtMax", "", generation=1)
    promises.follow(partly(0), given, None, START)
    promises.follow(partly(2), given, None, at(1))
    promises.follow(partly(2, refused=at(3), admitted=False), given, QUOTA, at(3))
    held = promises.follow(partly(0), Share(0, "GrantUnused", "", generation=1), None, at(30))
    assert held.usable == 0
    assert held.unused.startswith("granted workers beyond 0 could not be used: QuotaExceeded: exceeded quota: gpus;")
    assert held.obstacle == "QuotaExceeded", "the reason of the job's conditions"


def test_workers_beyond_the_minimum_that_cannot_start_do_not_use_their_grant_for_ever():
    stuck = tuple(Worker(f"s{i}", "n", ONE.demand, stuck=True) for i in range(3))
    hung = dataclasses.replace(job(2), trains=True, workers=(*job(2).workers, *stuck))
    started = after((0, hung, 5), (299, hung, 5))
    assert promise.usable(started, at(299)) is None
    assert promise.usable(after((0, hung, 5), (300, hung, 5)), at(300)) == 2, "it keeps those that train"
    waits = dataclasses.replace(hung, min=5)
    assert promise.usable(after((0, waits, 5), (900, waits, 5)), at(900)) is None, "a minimum waits for its cause"


@pytest.mark.parametrize(("unknown", "times"), [(("pod affinity",), 1), ((), 8)])
def test_no_worker_leaves_twice_for_what_the_scheduler_has_refused_and_the_allocator_does_not_know(unknown, times):
    cluster = Cluster()
    cluster.arrive("a", 1, 8)
    cluster.run(5)
    cluster.arrive("b", 7, 7, fault="unschedulable", unknown=unknown)
    cluster.step = 5
    cluster.run(7200)
    sizes = cluster.sizes["a"]
    assert sum(before == 8 > after for before, after in itertools.pairwise(sizes)) == times
    if unknown:
        text = "no other worker leaves for it until nodes, its spec or jobs of its namespace change: unschedulable"
        assert text in cluster.shares["b"].message
        cluster.add_node()
        cluster.run(10)
        assert cluster.shares["b"].size == 7, "it is tried again"


def test_a_job_for_which_the_scheduler_evicts_others_gives_its_grant_back_at_once_and_gets_no_other():
    """Until nodes, its spec or the jobs change: its pod anti-affinity, say, is not in the books."""
    seen = dataclasses.replace(job(1), trains=True, evicts=True, unknown=("pod affinity",))
    failing = dataclasses.replace(seen, hindered=True, evicting=True)
    obstacle, share = Obstacle("Unschedulable", "0/2 nodes"), Share(2, "AtMax", "all")
    promises = promise.Promises()
    assert promises.follow(seen, share, None, at(0), fingerprint=1).usable is None
    assert promises.follow(failing, share, obstacle, at(1), fingerprint=1).usable == 1
    held = promises.follow(seen, Share(1, "GrantUnused", ""), None, at(90), fingerprint=1)
    assert (held.usable, held.unused.endswith("Unschedulable: 0/2 nodes")) == (1, True), "after its back-off"
    assert promises.follow(seen, Share(1, "GrantUnused", ""), None, at(91), fingerprint=2).usable is None
