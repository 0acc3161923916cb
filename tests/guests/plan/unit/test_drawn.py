"""The formula of a plan beside losses that are drawn one by one (bench/ettr_model.py)."""

from __future__ import annotations

import importlib.util
import random
import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from elastrain_plan.choose import choose
from elastrain_plan.model import GB, Cluster, Settings, split

BENCH = Path(__file__).parents[4] / "bench/ettr_model.py"
BIG = Cluster(cards=16_384, per_node=8, state=6_480 * GB, step=8.0, mttf=50_000.0)


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("ettr_model", BENCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("cards", [64, 1024, 16_384])
def test_formula_and_drawn_losses_agree_within_a_tenth_of_a_point(bench, cards) -> None:
    cluster = replace(BIG, cards=cards)
    plan = choose(cluster, 0.6 * 192 * GB)
    drawn = bench.Run(cluster, plan.settings, random.Random(1), 0.5).go(5_000)
    assert astuple(drawn) == pytest.approx(astuple(plan.split), abs=1e-3)


def test_they_agree_within_four_points_where_a_loss_often_hits_a_rescale(bench) -> None:
    cluster = replace(BIG, cards=98_304)
    settings = choose(cluster, 0.6 * 192 * GB).settings
    drawn = bench.Run(cluster, settings, random.Random(1), 0.5).go(5_000)
    assert drawn.training == pytest.approx(split(cluster, settings).training, abs=0.04)


def test_drawn_parts_are_never_negative_and_add_up_to_one_also_with_spares(bench) -> None:
    cluster = replace(BIG, cards=1024, mttf=200.0)
    parts = astuple(bench.Run(cluster, Settings(64, 3, 100, 20), random.Random(2), 0.5).go(2_000))
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(1)


def test_one_copy_of_the_state_repeats_steps_in_both(bench) -> None:
    cluster = replace(BIG, cards=64)
    settings = Settings(64, 0, 1000, 20)
    drawn = bench.Run(cluster, settings, random.Random(3), 0.0).go(5_000)
    assert drawn.redone == pytest.approx(split(cluster, settings).redone, rel=0.2)
