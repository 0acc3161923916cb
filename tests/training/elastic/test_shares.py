"""Shares follow the speeds of the ranks: the decision, over played speeds, and real ranks of which one is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import threaded_world
from elastrain.api.settings import RankSettings, ShareRule
from elastrain.data.order import Order, run_of
from elastrain.data.share import Share
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.job import Job
from elastrain.elastic.shares import (
    CHANGE,
    GAIN,
    MOST,
    WHOLE,
    WINDOW,
    MeasuredShares,
    Shares,
    begun,
    even,
    follow,
    reported,
)
from elastrain.elastic.strategies.bitwise import Bitwise
from elastrain_audit.judge import verify
from threaded_world import RankThread, ThreadWorld, thread_world

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
    votes = [a + b for a, b in zip(*(m.votes(Share(0, 2), 2, 1.0, 8) for m in (one, other)), strict=True)]
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
        shares.votes(Share(1, 2), 2, 3.0, 1)
        shares.commit([1.0, 3.0, 0.0, 2.0], learning=False)
    assert shares.pace == 3 * 10**9
    shares.enter([10**9, shares.pace, 0])
    assert (shares.pace, shares.now.weights) == (3 * 10**9, begun([1, 3, 2]).weights)


# -- real ranks ------------------------------------------------------------------------------------------------------
STEPS, BATCH, SECONDS = 40, 24, 0.0005
"""Of the job; seconds that a fast rank takes for a sample, at least."""


def trained(
    folder: Path,
    rule: ShareRule,
    slow: float,
    disturb: Callable[[ThreadWorld], object] = lambda _: None,
    **cut: int,
) -> tuple[Any, list[Any], bool]:
    """The model's parameters, the samples of rank b by loop body, and whether the audit is clean.

    ``disturb``: called as a and b train. ``cut``: how the batch is cut further.
    """
    samples: list[int] = []

    def script(job: Job, rank: RankThread) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(480, 4, generator=generator).double(), torch.randn(480, 1, generator=generator).double()
        net = nn.Linear(4, 1).double()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.1)
        model = job.wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        job.track(optimizer=optimizer)
        loader = job.dataloader(TensorDataset(x, y), global_batch_size=BATCH, seed=3, **cut)
        for inputs, targets in job.steps(loader, steps=STEPS):
            rank.body()
            if rank.worker == "b":
                samples.append(len(inputs))
            time.sleep(len(inputs) * SECONDS * (slow if rank.worker == "b" else 1.0))
            optimizer.zero_grad()
            job.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        return {name: value.detach().clone() for name, value in net.named_parameters()}

    with thread_world(folder, script, RankSettings(shares=rule)) as world:
        world.train("a", "b")
        disturb(world)
        world.lead()
        a, *others = filter(None, (world.result(name) for name in world.ranks))
    assert all(torch.equal(a[name], other[name]) for other in others for name in a)
    return a, samples, verify(folder / "audit").ok


def test_a_slow_rank_computes_fewer_samples_and_the_model_is_that_of_equal_shares(tmp_path) -> None:
    equal, before, _ = trained(tmp_path / "equal", ShareRule.EQUAL, 3.0)
    measured, after, clean = trained(tmp_path / "measured", ShareRule.MEASURED, 3.0)
    assert clean
    assert before[-1] == BATCH // 2
    assert BATCH // 6 <= after[-1] <= BATCH // 3, "a quarter of the batch belongs to it"
    for name, value in equal.items():
        assert torch.allclose(measured[name], value, rtol=0, atol=1e-14), name


def c_joins(world: ThreadWorld) -> None:
    """Once the shares have changed."""
    world.allow(2 * WINDOW)
    world.hold("a", "b", step=2 * WINDOW)
    world.begin("c")
    world.propose("a", "b", "c")
    world.connected("a", "b")
    world.allow(STEPS)


def test_a_slow_rank_has_no_equal_share_in_any_step_after_another_one_has_joined(tmp_path) -> None:
    _, samples, clean = trained(tmp_path, ShareRule.MEASURED, 3.0, c_joins)
    assert clean
    of_three = samples[-(STEPS - 2 * WINDOW - 3) :]  # after the switch, and the step in which c receives its state
    assert max(of_three) < BATCH // 3


def b_dies_and_c_joins(world: ThreadWorld) -> None:
    """Once the shares have changed."""
    world.kills["b"] = "body", 2 * WINDOW
    world.begin("c")


def test_samples_and_model_are_those_of_equal_shares_if_ranks_die_and_join(tmp_path) -> None:
    equal, *_ = trained(tmp_path / "equal", ShareRule.EQUAL, 1.0)
    measured, _, clean = trained(tmp_path / "measured", ShareRule.MEASURED, 3.0, b_dies_and_c_joins)
    assert clean, "each sample is computed once"
    for name, value in equal.items():
        assert torch.allclose(measured[name], value, rtol=0, atol=1e-14), name


def test_the_bits_are_those_of_equal_shares_in_bitwise_mode(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(threaded_world, "strategy_for", lambda *_: Bitwise())
    equal, before, _ = trained(tmp_path / "equal", ShareRule.EQUAL, 3.0, micro_batches=12)
    measured, after, clean = trained(tmp_path / "measured", ShareRule.MEASURED, 3.0, micro_batches=12)
    assert clean
    assert len(after) < len(before), "b has computed fewer micro-batches"
    assert all(torch.equal(measured[name], value) for name, value in equal.items())
