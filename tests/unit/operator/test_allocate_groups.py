"""Sharing the cluster out between jobs whose replicas are groups of several workers: whole groups only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.allocation import promise
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import (
    Held,
    Job,
    Node,
    Policy,
    Share,
    Sharing,
    Snapshot,
    Worker,
    WorkerShape,
)
from elastrain_resource.sizing.speedup import Measured

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = ((GPU, 1), ("pods", 1))


def node(name: str, gpus: int) -> Node:
    return Node(name, {GPU: gpus, "pods": 100})


def job(name: str, least: int = 1, most: int = 4, on: tuple[str, ...] = (), size: int = 2, **fields) -> Job:
    """A job of ``least`` to ``most`` groups of ``size`` workers, with one worker on each node named in ``on``, group by
    group."""
    workers = tuple(Worker(f"{name}-{i}", n, ONE, True, group=f"{i // size}") for i, n in enumerate(on))
    held = -(-len(on) // size) * size
    fields = {"namespace": "ns", "size": held, "trains": bool(on), "workers": workers, **fields}
    return Job(name, min=least * size, cap=most * size, name=name, kind=WorkerShape(ONE), group_size=size, **fields)


def shares(nodes, *jobs: Job, policy: Policy | None = None, leaving=()) -> dict[str, Share]:
    return dict(allocate(Snapshot(tuple(nodes), jobs, tuple(leaving)), policy or Policy(), NOW).shares)


def test_a_part_of_a_group_takes_no_room_from_another_job():
    got = shares([node("n", 7)], job("a", size=4), replace(job("b", size=1, most=8), created=2.0))
    assert (got["a"].size, got["b"].size) == (4, 3)


def test_messages_count_groups():
    got = shares([node("n", 5)], job("a"))["a"]
    assert (got.size, got.reason) == (4, "NoRoom")
    assert got.message == f"not grown: 1 {GPU} idle, 2 needed for the next group (2 workers)"
    assert shares([node("n", 3)], job("a", least=2))["a"].message == (
        "waits: 2 groups must start together (minReplicas), there is room for 1; "
        f"3 {GPU} idle, 2 needed for the next group (2 workers)"
    )
    assert shares([node("n", 1)], job("a"))["a"].message == (
        f"waits for its first group, there is room for 0; 1 {GPU} idle, 2 needed for the next group (2 workers)"
    )
    assert shares([node("n", 4)], job("a", most=2))["a"].message == "2 groups: all of maxReplicas"


def test_a_quota_is_asked_for_a_whole_group():
    got = shares([node("n", 9)], job("a"), policy=Policy({"ns": {GPU: 3}}))["a"]
    assert (got.size, got.reason) == (2, "QuotaExceeded")
    assert got.message == (f"not grown: 2 of 3 {GPU} of namespace ns's quota used, 2 needed for the next 2 workers")


def test_a_displaced_worker_takes_its_mates_along():
    low = job("low", on=("n", "m", "n", "m"))
    got = shares([node("n", 2), node("m", 2)], low, job("high", most=1, size=1, priority=5))
    assert (got["low"].size, got["high"].size) == (2, 0), "its room is not free yet"
    assert got["low"].release in ({"low-0", "low-1"}, {"low-2", "low-3"})


def test_nobody_leaves_for_a_group_that_does_not_fit():
    low = job("low", most=3, on=("n", "n", "n"), size=1)
    got = shares([node("n", 3)], low, job("high", size=4, priority=5))
    assert (got["low"].size, got["low"].release, got["high"].size) == (3, frozenset(), 0)


def test_the_missing_worker_of_a_group_is_granted_before_another_group():
    hurt = replace(job("a", on=("n", "n", "n"), size=2))
    got = shares([node("n", 4)], hurt)["a"]
    assert (got.size, got.release) == (4, frozenset())


def test_a_group_stays_in_part_if_the_place_of_its_missing_worker_is_not_free_yet():
    hurt = job("a", on=("n", "n", "n"))
    got = shares([node("n", 4)], hurt, leaving=[Held("n", ONE)])["a"]
    assert (got.size, got.release) == (4, frozenset()), "the new worker waits, and its mate stands by"


def test_a_group_that_cannot_become_whole_leaves_and_the_whole_ones_stay():
    lost = (Worker("a-1", "n", ONE, False, group="0"), *(Worker(f"a-{i}", "n", ONE, True, group="1") for i in (2, 3)))
    got = shares([node("n", 3)], job("a", on=("n",) * 3, workers=lost), job("b", most=3, size=1))
    assert (got["a"].size, got["a"].release) == (2, {"a-1"})


def test_the_minimum_keeps_its_workers_though_one_is_missing():
    got = shares([node("n", 1)], job("a", on=("n",)), job("b", size=1, priority=5))["a"]
    assert (got.size, got.release) == (2, frozenset())


def test_a_pending_group_is_asked_for_although_a_part_of_it_would_fit():
    got = shares([node("n", 5)], job("a", on=("n",) * 4), policy=Policy(pending=1))["a"]
    assert (got.size, got.pending, got.in_replicas(2).pending) == (4, 2, 1)


def test_spares_are_whole_groups():
    got = shares([node("n", 5)], job("a", most=1, on=("n", "n"), spares=4))["a"]
    assert (got.size, got.spares) == (2, 2)


def test_a_group_on_a_departing_node_is_replaced_if_all_of_it_finds_room():
    going = [Node("n", {GPU: 2, "pods": 9}, going=True), node("m", 2)]
    trained = job("a", least=1, most=2, on=("n", "m", "m", "n"))
    assert shares([*going, node("x", 1)], trained)["a"].replace == frozenset()
    assert shares([*going, node("x", 2)], trained)["a"].replace in ({"a-0", "a-1"}, {"a-2", "a-3"})


def test_an_expired_grant_leaves_whole_groups():
    waits = job("a", on=("n", "n", "n"))
    before = promise.after(None, waits, 4, NOW)
    after = promise.after(before, waits, 4, NOW + timedelta(seconds=promise.SILENT_SECONDS + 1))
    assert after.usable == 2
    assert shares([node("n", 8)], replace(waits, usable=after.usable, unused="x"))["a"].size == 2


@pytest.mark.parametrize("sharing", [Sharing.EFFICIENT, Sharing.BALANCED])
def test_sizes_by_measured_speed_are_whole_groups(sharing):
    policy = Policy(hysteresis=0, pause=0.1, startup=0, sharing=sharing)
    well = tuple(Measured(w, 1, 1 / w) for w in (2, 4, 8))
    badly = tuple(Measured(w, 1, 0.9 + 0.1 / w) for w in (2, 4, 8))
    old = {"created": NOW.timestamp() - 86400, "pause": 0.1, "samples": 64.0}
    one = job("well", measured=well, on=("n",) * 4, **old)
    other = job("badly", measured=badly, on=("n",) * 6, **old)
    got = shares([node("n", 11)], one, other, policy=policy)
    assert all(share.size % 2 == 0 for share in got.values())
    assert got["badly"].size == 2
    assert got["badly"].reason == "OthersGainMore"
    assert "2 groups would add" in got["badly"].message
    assert "of ns/well gained more" in got["badly"].message


def test_jobs_of_the_same_name_in_two_namespaces_do_not_mix():
    """Their pods have the same names, and may be on one node."""
    one, other = job("x", 1, 4, ("n", "n"), 1), job("x", 1, 4, ("n", "n"), 1)
    other = replace(other, uid="y", namespace="other")
    high = job("high", least=2, most=2, size=1, priority=5)
    got = shares([node("n", 4)], one, other, high)
    assert {uid: share.size for uid, share in got.items()} == {"x": 1, "y": 1, "high": 0}
    assert {len(got[uid].release) for uid in "xy"} == {1}
