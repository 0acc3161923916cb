"""Shares follow the speeds of the ranks: the decision, over played speeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastrain.api.batch import ShareLimit
from elastrain.api.shape import Shape
from elastrain.data.order import Order, run_of
from elastrain.data.share import Place, Share
from elastrain.elastic.comm.header import RanksDiverged
from elastrain_shares.follow import (
    CHANGE,
    GAIN,
    LEAST,
    LONGEST,
    SHOWS,
    WHOLE,
    WINDOW,
    Shares,
    begun,
    even,
    follow,
    proportional,
)
from elastrain_shares.measured import MeasuredShares, bound, reported

MOST = 2.0
"""Of the equal share."""
Speeds = Callable[[float], list[float]]
"""Samples per second of each rank, by the time."""


def played(speeds: Speeds, *, batch: int, steps: int, overhead: float = 0.0) -> tuple[list[Shares], float]:
    """The shares after each step, and the samples per second over all of them."""
    now, clock, history = Shares(), 0.0, []
    for _ in range(steps):
        at = speeds(clock)
        parts = len(at)
        cuts = [run_of(batch, parts, p, now.weights) for p in range(parts)]
        seconds = [overhead + (stop - start) / v for (start, stop), v in zip(cuts, at, strict=True)]
        clock += max(seconds)
        now = follow(now, [s / (stop - start) for s, (start, stop) in zip(seconds, cuts, strict=True)])
        history.append(now)
    return history, batch * steps / clock


# -- the cut ---------------------------------------------------------------------------------------------------------
@given(total=st.integers(1, 500), weights=st.lists(st.integers(1, WHOLE), min_size=1, max_size=12).map(tuple))
def test_the_parts_are_the_whole_batch_and_none_is_empty_for_any_weights(total, weights) -> None:
    parts = len(weights)
    cuts = [run_of(total, parts, p, weights) for p in range(parts)]
    assert cuts[0][0] == 0 and cuts[-1][1] == total
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert total < parts or all(start < stop for start, stop in cuts)


@given(weights=st.lists(st.integers(200, 999), min_size=2, max_size=6).map(tuple))
def test_a_part_is_within_a_sample_of_its_weight_if_each_has_several(weights) -> None:
    for part, weight in enumerate(weights):
        start, stop = run_of(256, len(weights), part, weights)
        assert abs((stop - start) - 256 * weight / sum(weights)) <= 1


@pytest.mark.parametrize("cut", [{}, {"micro_batch_size": 3}, {"micro_batches": 8}])
def test_the_weights_of_uneven_parts_add_up_to_the_batch(cut) -> None:
    order = Order(100, 24, **cut)
    slices = [s for part in range(3) for s in order.micro_slices(2, part, 3, (1, 2, 5))]
    assert [i for s in slices for i in s.indices] == list(order.batch(2))
    assert sum(s.weight for s in slices) == pytest.approx(1.0, abs=1e-15)


@given(
    batch=st.integers(1, 200),
    micro=st.integers(1, 20),
    weights=st.lists(st.integers(1, 999), min_size=1, max_size=8).map(tuple),
    cut=st.sampled_from(["micro_batch_size", "micro_batches", ""]),
)
def test_uneven_parts_of_a_sharded_model_have_equally_many_micro_batches_none_larger_than_asked_for(
    batch, micro, weights, cut
) -> None:
    order = Order(300, batch, even=True, **({cut: micro} if cut else {}))
    parts = [order.micro_slices(0, part, len(weights), weights) for part in range(len(weights))]
    assert len({len(part) for part in parts}) == 1
    assert [i for part in parts for each in part for i in each.indices] == list(order.batch(0))
    assert cut != "micro_batch_size" or all(len(each.fetch) <= micro for part in parts for each in part)


# -- the decision ----------------------------------------------------------------------------------------------------
@given(speeds=st.lists(st.floats(100, 400), min_size=2, max_size=6), overhead=st.sampled_from([0.0, 0.01, 0.1]))
def test_shares_come_to_rest_near_the_sum_of_the_speeds_if_these_are_constant(speeds, overhead) -> None:
    history, _ = played(lambda _: speeds, batch=960, steps=30 * WINDOW, overhead=overhead)
    assert all(sum(s.weights or even(len(speeds))) == WHOLE for s in history)
    last = history[-1].weights or even(len(speeds))
    assert {s.weights for s in history[-10 * WINDOW :]} == {history[-1].weights}, "they oscillate"
    times = [overhead + 960 * w / WHOLE / v for w, v in zip(last, speeds, strict=True)]
    ideal = (960 + overhead * sum(speeds)) / sum(speeds)
    bounded = any(w >= WHOLE * MOST / len(speeds) - len(speeds) for w in last)
    assert bounded or max(times) <= ideal * (1 + GAIN + 0.02)


def test_shares_stay_if_the_batch_changes() -> None:
    """A larger one makes each sample cheaper on all ranks."""
    now, history = Shares(), []
    for step in range(40 * WINDOW):
        batch = (96, 192, 384, 192)[step // 40 % 4]
        cuts = [run_of(batch, 2, part, now.weights) for part in range(2)]
        counts = [stop - start for start, stop in cuts]
        now = follow(now, [(0.05 + n / v) / n for n, v in zip(counts, [500.0, 250.0], strict=True)])
        history.append(now.weights)
    assert history[-1][0] / WHOLE == pytest.approx(2 / 3, abs=0.01)
    assert len({*history[3 * WINDOW :]}) == 1, "they change with the batch"


@pytest.mark.parametrize("slow", [50.0, 25.0])
def test_throughput_is_nearly_the_sum_of_speeds_if_one_of_two_ranks_is_held_to_a_part_of_its_own(slow) -> None:
    _, throughput = played(lambda _: [100.0, slow], batch=64, steps=400)
    assert throughput >= 0.95 * (100 + slow)


@pytest.mark.parametrize("step_seconds", [0.05, 0.5, 1.3])
def test_shares_change_at_most_as_often_as_a_speed_that_flaps_each_5_s(step_seconds) -> None:
    def flapping(now: float) -> list[float]:
        return [100.0, 100.0 if int(now / 5) % 2 else 50.0]

    steps = int(1200 / step_seconds)
    history, _ = played(flapping, batch=round(150 * step_seconds), steps=steps)
    late = [s.weights for s in history[steps // 2 :]]
    assert sum(a != b for a, b in pairwise(late)) <= 600 / 5 + 2, "they oscillate faster than the speed"


def test_a_speed_that_changes_for_good_is_followed_soon_also_if_it_has_flapped_before() -> None:
    def speeds(now: float) -> list[float]:
        return [100.0, (100.0 if int(now / 5) % 2 else 50.0) if now < 600 else 80.0 if now < 1800 else 25.0]

    history, clock, changed = Shares(), 0.0, 0
    while changed < 8 * WINDOW:
        cuts = [run_of(150, 2, part, history.weights) for part in range(2)]
        seconds = [(stop - start) / v for (start, stop), v in zip(cuts, speeds(clock), strict=True)]
        clock += max(seconds)
        changed += clock > 1800
        history = follow(history, [s / (stop - start) for s, (start, stop) in zip(seconds, cuts, strict=True)])
    assert history.weights[1] / WHOLE == pytest.approx(25 / 125, abs=0.02)


@given(st.lists(st.lists(st.floats(1e-4, 10), min_size=3, max_size=3), min_size=WINDOW, max_size=4 * WINDOW))
def test_one_decision_changes_no_share_by_more_than_half_for_any_times(rows) -> None:
    now = Shares()
    for row in rows:
        after = follow(now, row)
        for old, new in zip(now.weights or even(3), after.weights or even(3), strict=True):
            assert abs(new - old) <= CHANGE * old + len(row)
        now = after


def test_nothing_is_decided_from_steps_in_which_a_rank_has_no_time() -> None:
    now = Shares()
    for _ in range(3 * WINDOW):
        now = follow(now, [0.0, 1.0])
    assert now == Shares()


# -- its bounds ------------------------------------------------------------------------------------------------------
SECONDS = st.lists(st.floats(1e-4, 10), min_size=1, max_size=12)


@given(seconds=SECONDS, most=st.floats(1.0, 20.0))
def test_the_weights_add_up_to_the_whole_and_keep_their_bounds_for_any_speeds(seconds, most) -> None:
    units = len(seconds)
    weights = proportional(seconds, bound(units, most, 0))
    assert sum(weights) == WHOLE
    assert max(weights) <= WHOLE * min(most / units, 1.0) + units
    assert min(weights) >= WHOLE * LEAST / units - units


@given(seconds=SECONDS, most=st.floats(1.0, 20.0))
@example([1.0, 2.0, 2.0, 0.5, 1 / 128, 1 / 128], 2.9375)  # both bounds hold several
def test_a_faster_unit_has_no_smaller_weight_for_any_speeds(seconds, most) -> None:
    weights = proportional(seconds, bound(len(seconds), most, 0))
    pairs = [(a, b) for a in range(len(seconds)) for b in range(len(seconds)) if seconds[a] < seconds[b]]
    assert all(weights[a] >= weights[b] - len(seconds) for a, b in pairs)


@given(seconds=SECONDS, part=st.floats(0.0, 1.0))
def test_shares_are_equal_if_the_bounds_allow_no_others(seconds, part) -> None:
    assert proportional(seconds, part / len(seconds)) == even(len(seconds))


@given(st.lists(st.lists(st.floats(1e-4, 10), min_size=3, max_size=3), min_size=WINDOW, max_size=4 * WINDOW))
def test_no_share_grows_beyond_max_share_in_any_decision(rows) -> None:
    now = Shares()
    for row in rows:
        now = follow(now, row, bound(3, 1.5, 0))
        assert max(now.weights, default=0) <= WHOLE / 2 + len(row)


@given(
    data=st.data(),
    units=st.integers(2, 6),
    most=st.floats(1.0, 8.0),
    things=st.integers(1, 200),
)
def test_parts_are_the_whole_batch_each_has_a_granule_and_none_more_than_max_share_for_any_speeds(
    data, units, most, things
) -> None:
    """``things``: of a batch: samples, or micro-batches. Times that are 0 are not known."""
    seconds = st.one_of(st.just(0.0), st.floats(1e-4, 10))
    rows = data.draw(st.lists(st.lists(seconds, min_size=units, max_size=units), max_size=4 * WINDOW))
    now, repeats = Shares(), data.draw(st.integers(1, 2 * WINDOW))
    for row in (row for row in rows for _ in range(repeats)):
        now = follow(now, row, bound(units, most, 0))
        cuts = [run_of(things, units, part, now.weights) for part in range(units)]
        counts = [stop - start for start, stop in cuts]
        assert sum(counts) == things and all(a[1] == b[0] for a, b in pairwise(cuts))
        assert min(counts) >= min(1, things // units)
        assert max(counts) <= max(1, things * most / units + 1)


# -- a speed that jumps ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slower", "steps"), [(2.0, SHOWS - 1), (1.3, SHOWS)])
def test_a_speed_that_jumps_is_followed_after_the_steps_that_show_it(slower, steps) -> None:
    now = Shares()
    for _ in range(3 * WINDOW):
        now = follow(now, [0.01, 0.01])
    for _ in range(steps - 1):
        now = follow(now, [0.01, 0.01 * slower])
    assert now.weights in ((), even(2))
    after = follow(now, [0.01, 0.01 * slower])
    assert after.weights[1] / WHOLE == pytest.approx(1 / (1 + slower), abs=1e-3)


@pytest.mark.parametrize(("batch", "least"), [(128, 0.96), (32, 0.96)])
def test_throughput_is_near_the_sum_of_the_speeds_if_one_flaps_each_5_s(batch, least) -> None:
    """As ``bench/shares.py`` plays it: 500 samples a second and rank, 8 at a time in the smaller case."""
    fast = 4.0 * batch

    def flapping(now: float) -> list[float]:
        return [fast, fast * (0.5 if int(now / 5) % 2 else 1.0)]

    steps = 2000
    history, throughput = played(flapping, batch=batch, steps=steps)
    mean_speeds = (2.0 + 1.5) / 2 * fast
    assert throughput >= least * mean_speeds
    phases = batch * steps / throughput / 5
    assert sum(a.weights != b.weights for a, b in pairwise(history)) <= phases + 2, "they oscillate"


def scattered(speeds: Speeds, *, noise: float, outliers: float, follows: bool, seed: int = 5) -> float:
    """Seconds of 1500 steps of 128 samples, whose times have a lognormal factor, and sometimes are three times as
    long."""
    draw, now, clock = random.Random(seed), Shares(), 0.0
    for _ in range(1500):
        cuts = [run_of(128, 2, part, now.weights) for part in range(2)]
        slow = [draw.lognormvariate(0, noise) * (3.0 if draw.random() < outliers else 1.0) for _ in cuts]
        seconds = [(stop - start) / v * s for (start, stop), v, s in zip(cuts, speeds(clock), slow, strict=True)]
        clock += max(seconds)
        times = [s / (stop - start) for s, (start, stop) in zip(seconds, cuts, strict=True)]
        now = follow(now, times) if follows else now
    return clock


@pytest.mark.parametrize(
    ("period", "noise", "outliers", "gain"),
    [(5, 0.01, 0.0, 1.13), (5, 0.05, 0.0, 1.1), (5, 0.01, 0.01, 1.08), (3, 0.01, 0.01, 1.04), (2, 0.0, 0.0, 1.08)],
)
def test_a_speed_that_flaps_is_followed_also_if_times_scatter_and_single_steps_take_long(
    period, noise, outliers, gain
) -> None:
    def flapping(now: float) -> list[float]:
        return [500.0, 250.0 if int(now / period) % 2 else 500.0]

    followed, equal = (
        sum(scattered(flapping, noise=noise, outliers=outliers, follows=f, seed=seed) for seed in range(3))
        for f in (True, False)
    )
    assert equal >= gain * followed


@pytest.mark.parametrize("period", [0.3, 1.0])
def test_a_speed_that_flaps_too_fast_to_follow_is_averaged_and_costs_little_beside_equal_shares(period) -> None:
    def flapping(now: float) -> list[float]:
        return [500.0, 250.0 if int(now / period) % 2 else 500.0]

    history, throughput = played(flapping, batch=128, steps=3000)
    clock = 0.0
    for _ in range(3000):
        clock += 64 / min(flapping(clock))
    assert throughput >= 0.95 * 128 * 3000 / clock
    changes = sum(a.weights != b.weights for a, b in pairwise(history))
    assert changes <= 3000 / 15, "each of them could be a step late"


@pytest.mark.parametrize(("noise", "cost"), [(0.05, 0.01), (0.2, 0.02)])
def test_scattered_times_of_equal_ranks_cost_little(noise, cost) -> None:
    times = {f: scattered(lambda _: [500.0, 500.0], noise=noise, outliers=0.02, follows=f) for f in (True, False)}
    assert times[True] <= (1 + cost) * times[False]


@given(
    speeds=st.lists(st.floats(100, 400), min_size=2, max_size=5),
    noise=st.floats(0.0, 0.03),
    seed=st.integers(0, 999),
)
def test_shares_of_constant_speeds_do_not_oscillate_if_times_scatter_by_a_few_percent(speeds, noise, seed) -> None:
    """Each time is off by up to ``noise``."""
    draw, now, history = random.Random(seed), Shares(), []
    for _ in range(100 * WINDOW):
        now = follow(now, [(1 + draw.uniform(-noise, noise)) / v for v in speeds])
        history.append(now.weights or even(len(speeds)))
    late = history[len(history) // 2 :]
    assert sum(a != b for a, b in pairwise(late)) <= 6
    fair = proportional([1 / v for v in speeds])
    for weights in late:
        assert all(abs(w - f) <= 0.06 * f + 1 for w, f in zip(weights, fair, strict=True))


@given(st.lists(st.lists(st.floats(1e-3, 1e-1), min_size=2, max_size=2), min_size=100, max_size=200))
def test_the_steps_that_show_a_jump_stay_within_their_bounds_for_any_times(rows) -> None:
    now = Shares()
    for row in rows:
        now = follow(now, row)
        assert SHOWS <= now.shows <= WINDOW * LONGEST and len(now.times) <= WINDOW * LONGEST


# -- what the ranks make of it ---------------------------------------------------------------------------------------
def decided(shares: MeasuredShares, times: list[float], steps: int) -> None:
    """``shares`` after so many more steps with these times, by rank."""
    for _ in range(steps):
        shares.commit([*times, 0.0, float(len(times))], learning=False)


def lost_after(steps: int) -> MeasuredShares:
    """A rank so many steps after the shares have changed, since it takes half as long for a sample as the other one."""
    shares = MeasuredShares()
    shares.enter([0, 0])
    decided(shares, [0.01, 0.02], WINDOW + steps)
    assert max(shares.now.weights) > 0.6 * WHOLE
    return shares


def test_no_share_is_greater_than_before_if_a_rank_is_lost_just_after_its_share_has_grown() -> None:
    survivor = lost_after(steps=1)
    ceiling = survivor.ceiling(lost=True)
    assert ceiling == WHOLE // 2
    survivor.enter([10_000_000, 20_000_000], ceiling)
    decided(survivor, [0.01, 0.02], 5 * WINDOW)
    assert (survivor.now.weights or even(2)) == even(2), "the next rank would be lost by the same"
    assert {one.limit for one in survivor.reported} <= {None, ShareLimit.LOSS}
    assert survivor.ceiling(lost=True) == ceiling


@pytest.mark.parametrize(("steps", "lost"), [(WINDOW, True), (1, False)])
def test_a_share_may_grow_again_if_it_was_computed_for_a_while_or_no_rank_was_lost(steps, lost) -> None:
    assert lost_after(steps).ceiling(lost=lost) == 0


def test_a_share_may_grow_again_if_a_rank_is_lost_while_shares_are_equal() -> None:
    shares = MeasuredShares()
    shares.enter([0, 0])
    decided(shares, [0.01, 0.01], 2 * WINDOW)
    assert shares.ceiling(lost=True) == 0


def test_a_new_rank_keeps_to_what_the_survivors_know() -> None:
    new = MeasuredShares()
    new.enter([10_000_000, 20_000_000], WHOLE // 2 + 100)
    assert max(new.now.weights) <= WHOLE // 2 + 102


def test_a_group_is_as_fast_as_its_slowest_rank_and_its_ranks_have_equal_parts() -> None:
    shares = MeasuredShares(shape=Shape.flat(2))
    shares.enter([0, 0, 0, 0])
    decided(shares, [0.01, 0.01, 0.01, 0.03], WINDOW)
    assert [round(w / WHOLE, 2) for w in shares.now.weights] == [0.75, 0.25]
    share = shares.of(Share(1, 4))
    assert share.weights[0] == share.weights[1] and share.weights[2] == share.weights[3]
    assert [one.rank for one in shares.reported] == [2, 0]


def test_nothing_is_decided_if_one_rank_of_a_group_has_no_time() -> None:
    shares = MeasuredShares(shape=Shape.flat(2))
    shares.enter([0, 0, 0, 0])
    decided(shares, [0.01, 0.01, 0.0, 0.03], 2 * WINDOW)
    assert shares.now.weights == ()


@pytest.mark.parametrize(("most", "limit"), [(1.2, ShareLimit.MAX_SHARE), (2.0, None)])
def test_a_report_says_which_bound_holds_the_fastest_rank(most, limit) -> None:
    shares = MeasuredShares(most)
    shares.enter([0] * 20)
    decided(shares, [0.01] * 4 + [0.015] * 16, 3 * WINDOW)
    by_rank = {one.rank: one for one in shares.reported}
    assert len(by_rank) == 16
    assert (by_rank[3].limit if 3 in by_rank else None) == limit
    assert all(one.limit is None for rank, one in by_rank.items() if rank != 3)


def test_the_slowest_ranks_are_reported_first_with_their_speed_and_share() -> None:
    now = Shares()
    assert reported(now) == ()
    for _ in range(WINDOW):
        now = follow(now, [0.001, 0.003, 0.002])
    found = reported(now)
    assert [(one.rank, one.samples_per_second) for one in found] == [(1, 333.0), (2, 500.0), (0, 1000.0)]
    assert [one.share for one in found] == pytest.approx([now.weights[r] * 3 / WHOLE for r in (1, 2, 0)], abs=1e-3)


def test_ranks_with_different_shares_diverge_by_name() -> None:
    one, other = MeasuredShares(), MeasuredShares()
    other.enter([1, 3])
    cast = [m.votes(Share(0, 2), Place(1, 0, 2), seconds=1.0, samples=8) for m in (one, other)]
    votes = [a + b for a, b in zip(*cast, strict=True)]
    with pytest.raises(RanksDiverged, match=r"spec\.shares"):
        one.check(votes)


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=8))
def test_a_generation_begins_with_shares_in_proportion_to_the_known_speeds(paces) -> None:
    assert begun(paces).weights == begun([7 * pace for pace in paces]).weights
    weights = begun(paces).weights
    assert sum(weights) == WHOLE
    faster = [(a, b) for a in range(len(paces)) for b in range(len(paces)) if paces[a] < paces[b]]
    assert all(weights[a] >= weights[b] - len(paces) for a, b in faster)


def test_a_generation_begins_with_equal_shares_if_no_speed_is_known() -> None:
    assert begun([0, 0]) == begun([]) == Shares()


def test_a_new_rank_begins_with_the_share_of_the_others_mean() -> None:
    assert begun([1, 3, 0]).weights == begun([1, 3, 2]).weights


def test_a_rank_knows_its_own_pace_after_a_decision_and_keeps_it_into_the_next_generation() -> None:
    shares = MeasuredShares()
    for _ in range(WINDOW):
        shares.votes(Share(1, 2), Place(1, 1, 2), seconds=3.0, samples=1)
        shares.commit([1.0, 3.0, 0.0, 2.0], learning=False)
    assert shares.pace == 3 * 10**9
    shares.enter([10**9, shares.pace, 0])
    assert (shares.pace, shares.now.weights) == (3 * 10**9, begun([1, 3, 2]).weights)
