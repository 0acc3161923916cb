"""Verdicts about ranks: stuck, slow, waiting. A failing property's message is the promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.agent.core.checkup import LACK_SECONDS, Checkup, Situation, below_min
from elastrain.agent.core.health import (
    HOLD_SECONDS,
    HOLD_STEPS,
    NAME_SECONDS,
    Peers,
    Policy,
    Verdict,
    Watch,
    pace,
    stuck,
    waits,
)
from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.api.records import Health, Member, Phase, Target

FEW = examples(60)
POLICY = Policy(stuck_timeout=300)
BODY = Beat(Where.BODY, since=0.0, generation=1, world_size=2, commits=5, compute=0.1)
SOMEBODY_WAITS = Peers(place=0, members=2, waiting=True)


def verdict(beat: Beat, now: float, peers: Peers = SOMEBODY_WAITS, watch: Watch | None = None) -> Verdict:
    return (watch or Watch()).look({0: beat}, peers, now, POLICY)


def test_a_rank_is_named_and_its_stacks_requested_once_if_it_hangs_in_user_code_and_others_wait() -> None:
    watch = Watch()
    assert verdict(BODY, NAME_SECONDS - 1, watch=watch) == Verdict()
    named = verdict(BODY, NAME_SECONDS, watch=watch)
    assert (named.health, named.dump, named.restart) == (Health.STUCK, (0,), ())
    assert verdict(BODY, NAME_SECONDS + 1, watch=watch).dump == ()


def test_it_is_restarted_after_the_timeout_and_not_before_its_stacks_could_be_printed() -> None:
    watch = Watch()
    assert verdict(BODY, 1000, watch=watch).restart == ()
    ((rank, why),) = verdict(BODY, 1001, watch=watch).restart
    assert (rank, why) == (0, "local rank 0 hung in the script's code for 1001 s")


def test_it_is_never_restarted_if_the_timeout_is_0() -> None:
    watch = Watch()
    for now in (1e6, 1e6 + 1):
        look = watch.look({0: BODY}, SOMEBODY_WAITS, now, Policy(stuck_timeout=0))
    assert (look.health, look.restart) == (Health.STUCK, ())


@pytest.mark.parametrize(
    ("change", "peers"),
    [
        ({}, Peers(0, 2, waiting=False)),
        ({"where": Where.COLLECTIVE}, SOMEBODY_WAITS),
        ({"where": Where.RUNTIME}, SOMEBODY_WAITS),
        ({"where": Where.OUTSIDE}, SOMEBODY_WAITS),
        ({"where": Where.STARTING}, SOMEBODY_WAITS),
        ({"commits": 0}, SOMEBODY_WAITS),
        ({"compute": 60.0}, SOMEBODY_WAITS),
    ],
    ids=["nobody waits", "it waits itself", "checkpoint", "after the loop", "warm-up", "first step", "long steps"],
)
def test_no_rank_is_stuck_if(change, peers) -> None:
    assert verdict(replace(BODY, **change), 1000, peers).health is not Health.STUCK


def test_a_rank_that_trains_alone_is_stuck_although_no_rank_waits() -> None:
    assert verdict(replace(BODY, world_size=1), 1000, Peers()).health is Health.STUCK


def test_the_sibling_of_a_stuck_rank_is_evidence_enough_and_not_accused() -> None:
    waiting = replace(BODY, where=Where.COLLECTIVE)
    look = Watch().look({0: waiting, 1: BODY}, Peers(0, 1), 1000, POLICY)
    assert (look.health, look.dump) == (Health.STUCK, (1,))


def test_members_publish_that_they_wait_in_turn_until_one_has() -> None:
    waiting = {0: replace(BODY, where=Where.COLLECTIVE)}
    half = NAME_SECONDS / 2
    assert not waits(waiting, Peers(0, 4), half - 1, POLICY, said=False)
    assert waits(waiting, Peers(0, 4), half, POLICY, said=False)
    assert not waits(waiting, Peers(2, 4), half, POLICY, said=False)
    assert waits(waiting, Peers(2, 4), NAME_SECONDS, POLICY, said=False), "the first ones may be the stuck ones"
    assert not waits(waiting, Peers(2, 4, waiting=True), 1000, POLICY, said=False), "one report is enough"
    assert waits(waiting, Peers(0, 4, waiting=True), 1000, POLICY, said=True), "a report stays published"


# ---- stragglers ------------------------------------------------------------------------------------------------------
SECONDS = st.floats(1e-3, 100)


def world(times: list[float], commits: int) -> list[dict[int, Beat]]:
    """Pages of members with one rank each."""
    total = sum(times)
    return [{0: replace(BODY, compute=t, total=total, world_size=len(times), commits=commits)} for t in times]


def judge(watches: list[Watch], times: list[float], now: float, commits: int) -> set[int]:
    """Places of the members that report themselves as slow."""
    healthy = Peers(0, len(times))
    looks = [
        w.look({0: replace(b[0], since=now)}, healthy, now, POLICY)
        for w, b in zip(watches, world(times, commits), strict=True)
    ]
    return {i for i, look in enumerate(looks) if look.health is Health.SLOW}


def run(history: list[list[float]], seconds: float = 1.0, steps: int = 5) -> list[set[int]]:
    watches = [Watch() for _ in history[0]]
    return [judge(watches, times, 100 + i * seconds, 10 + i * steps) for i, times in enumerate(history)]


@FEW
@given(st.integers(2, 50), SECONDS)
def test_no_rank_is_named_if_all_are_equally_slow(size, seconds) -> None:
    assert run([[seconds] * size] * 10)[-1] == set()


@FEW
@given(st.integers(3, 50), st.data())
def test_a_rank_ten_times_slower_than_the_rest_is_named_and_no_other(size, data) -> None:
    base = data.draw(st.lists(st.floats(0.05, 0.1), min_size=size, max_size=size))
    slow = data.draw(st.integers(0, size - 1))
    base[slow] = 1.0
    assert run([base] * 10)[-1] == {slow}


@FEW
@given(st.integers(2, 12).flatmap(lambda n: st.lists(SECONDS, min_size=n, max_size=n)))
def test_at_most_a_third_is_named_for_any_times(times) -> None:
    assert len(run([times] * 10)[-1]) <= (len(times) + 2) // 3


HISTORIES = st.integers(2, 8).flatmap(
    lambda n: st.lists(st.lists(SECONDS, min_size=n, max_size=n), min_size=5, max_size=25)
)


@FEW
@given(HISTORIES)
def test_a_verdict_stands_for_as_long_as_the_contrary_evidence_needs(history) -> None:
    named = run(history)
    for place in range(len(history[0])):
        changes = [i for i in range(1, len(named)) if (place in named[i]) != (place in named[i - 1])]
        gaps = [b - a for a, b in zip([0, *changes], changes, strict=False)]
        assert all(gap >= HOLD_SECONDS for gap in gaps), "the verdict flaps"


@FEW
@given(st.lists(st.booleans(), min_size=5, max_size=25))
def test_no_rank_is_named_if_the_evidence_never_holds_for_long(bad) -> None:
    bad = [b and (i % int(HOLD_SECONDS) != 0) for i, b in enumerate(bad)]
    assert not any(run([[1.0 if b else 0.1, 0.1, 0.1] for b in bad]))


def test_no_verdict_changes_while_no_steps_are_committed() -> None:
    assert not any(run([[1.0, 0.1, 0.1]] * 20, steps=0))


@FEW
@given(st.lists(st.floats(2.01, 2.99), min_size=5, max_size=30), st.booleans())
def test_between_the_two_bounds_a_verdict_stays_as_it_is(ratios, named) -> None:
    watch = Watch(slow=Verdict(Health.SLOW, "as before") if named else None)
    for i, ratio in enumerate(ratios):
        judge([watch, Watch(), Watch()], [0.1 * ratio, 0.1, 0.1], 100.0 + i, 10 + 5 * i)
    assert (watch.slow is not None) == named


def test_a_whole_slow_node_and_a_single_slow_rank_of_a_node_are_both_seen() -> None:
    node = {r: replace(BODY, compute=1.0, total=8 * 1.0 + 24 * 0.1, world_size=32, commits=50) for r in range(8)}
    assert pace(node)[1] == pytest.approx(10)
    times = [0.1] * 7 + [1.0]
    one = {r: replace(BODY, compute=t, total=sum(times) + 0.8, world_size=16, commits=50) for r, t in enumerate(times)}
    assert pace(one) == (7, pytest.approx(10))


def test_nothing_is_compared_before_enough_steps_or_if_the_difference_is_nothing() -> None:
    (early, _) = world([1.0, 0.1], HOLD_STEPS - 1)
    assert pace(early) is None
    (tiny, _) = world([0.004, 0.0001], 100)
    assert pace(tiny)[1] == 0


def test_a_straggler_without_peers_is_no_longer_one() -> None:
    watch = Watch(slow=Verdict(Health.SLOW, "as before"))
    for i in range(10):
        judge([watch], [1.0], 100.0 + i, 20 + 5 * i)
    assert watch.slow is None


# ---- all pages, any order --------------------------------------------------------------------------------------------
BEATS = st.builds(
    Beat,
    where=st.sampled_from(Where),
    since=st.floats(0, 1000),
    generation=st.integers(0, 3),
    world_size=st.integers(1, 4),
    commits=st.integers(0, 100),
    compute=SECONDS,
    total=st.floats(0, 400),
)


@FEW
@given(st.dictionaries(st.integers(0, 3), BEATS), st.builds(Peers, st.integers(0, 3), st.integers(1, 4), st.booleans()))
def test_only_ranks_in_user_code_that_others_wait_for_are_stuck(beats, peers) -> None:
    for rank in stuck(beats, peers, 1000.0, POLICY):
        assert beats[rank].where is Where.BODY and beats[rank].commits, "only a rank in the script's code can be stuck"
        others = [b for r, b in beats.items() if r != rank]
        waited_for = peers.waiting or any(b.where is Where.COLLECTIVE for b in others) or beats[rank].world_size == 1
        assert waited_for, "a rank is never stuck while no rank waits for it"


# ---- the checkup -----------------------------------------------------------------------------------------------------
def situation(ready: int, least: int, **fields) -> Situation:
    members = {f"{i}.x": Member(id=f"{i}.x", worker=str(i), address="h", phase=Phase.READY) for i in range(ready)}
    return Situation(me="0.x", members=members, target=Target(min=least, max=9, desired=9), idle=True, **fields)


def test_a_job_below_its_minimum_is_reported_after_a_while_and_left_at_the_bound() -> None:
    checkup, few = Checkup(Policy(min_timeout=100)), situation(1, 2)
    checkup.look({}, few, 0.0)
    assert checkup.health is Health.OK
    checkup.look({}, few, LACK_SECONDS)
    assert checkup.health is Health.BELOW_MIN
    assert checkup.why_resign(few, 99.0) is None
    checkup.look({}, few, 100.0)
    assert "minReplicas" in checkup.why_resign(few, 100.0)
    checkup.look({}, situation(2, 2), 101.0)
    assert checkup.health is Health.OK
    assert checkup.why_resign(few, 101.0) is None


@pytest.mark.parametrize(
    "well",
    [
        situation(2, 2),
        situation(1, 2, trains=True),
        replace(situation(1, 2), idle=False),
        replace(situation(1, 2), target=None),
        replace(situation(1, 2), current=False),
        replace(situation(1, 2), target=Target(min=2, max=9, desired=0)),
    ],
    ids=["enough", "it trains", "not ready itself", "no target", "etcd is away", "suspended"],
)
def test_no_job_is_below_its_minimum_if(well) -> None:
    assert not below_min(well)


@FEW
@given(st.integers(1, 6), st.integers(1, 4), st.sets(st.integers(0, 5)))
def test_at_most_one_straggler_leaves_at_a_time_and_never_below_min(ready, least, slow) -> None:
    here = situation(ready, least)
    members = {i: m.model_copy(update={"health": Health.SLOW} if n in slow else {}) for n, (i, m) in
               enumerate(here.members.items())}  # fmt: skip
    slow_verdict = Verdict(Health.SLOW, "slow")
    leaving = []
    for me, member in members.items():
        checkup = Checkup(Policy(exclude_stragglers=True), Watch(slow=slow_verdict, slow_since=0.0), slow_verdict)
        if member.health == Health.SLOW and checkup.why_resign(replace(here, me=me, members=members), 1000.0):
            leaving.append(me)
    assert len(leaving) <= 1
    assert not leaving or ready - 1 >= least, "excluding a straggler took the job below its minimum"


def test_peers_are_those_of_the_generation_in_force() -> None:
    here = replace(situation(3, 1), generation=builders.generation(1, "0.x", "1.x"))
    waiting = {**here.members, "2.x": here.members["2.x"].model_copy(update={"health": "waiting"})}
    checkup = Checkup(POLICY)
    assert checkup.look({0: BODY}, replace(here, members=waiting), 1000.0).health is Health.OK
    waiting["1.x"] = here.members["1.x"].model_copy(update={"health": "waiting"})
    assert checkup.look({0: BODY}, replace(here, members=waiting), 1001.0).health is Health.STUCK
