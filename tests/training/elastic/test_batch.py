"""``spec.batch``: steps of several batches of the script, whose number changes while ranks come and go."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastrain.api.settings import BatchSettings, CheckpointSpec, LearningRate, RankSettings, ShareRule
from elastrain.data.order import Order
from elastrain.data.share import Place
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Known
from elastrain.elastic.commit.step import Step
from elastrain.elastic.strategies.strategy import ElasticModule
from elastrain_audit.judge import verify
from elastrain_batches import noise
from elastrain_batches.chosen import ChosenBatch

SCRIPT = Path(__file__).with_name("train_batch.py")
EPOCHS = 12
PER_EPOCH = 21
ORDER = Order(203, 10, seed=3)


def bounds(rule: LearningRate = LearningRate.SQUARE_ROOT, ranks: int = 1) -> BatchSettings:
    return BatchSettings(min=10, max=80, learning_rate=rule, least_ranks=ranks)


def start(world, *ranks: str, **options: Any) -> None:
    world.start(*ranks, **{"epochs": EPOCHS, "delay": 0.03, "script": SCRIPT, "batch": bounds(), **options})
    world.ready(*ranks)


def replayed(commits: list[tuple[int, int, float]]) -> tuple[dict[str, torch.Tensor], float]:
    """Plain torch in one process: steps of these batches, each at the script's learning rate times the third number."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
    labels = (inputs[:, :3] + 0.5 * torch.randn(203, 3, dtype=torch.float64, generator=generator)).argmax(1)
    data = TensorDataset(inputs, labels)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.99)
    for end, span, factor in commits:
        x, y = data[list(ORDER.batch(end - span, span))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * factor
        optimizer.step()
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(span):
            scheduler.step()
    return net.state_dict(), scheduler.get_last_lr()[0]


def assert_replayed(final: dict[str, Any], commits: list[tuple[int, int, float]]) -> None:
    model, rate = replayed(commits)
    for name, value in model.items():
        torch.testing.assert_close(final["model"][name], value, rtol=0, atol=1e-10, msg=name)
    assert final["lr"] == final["group"] == pytest.approx(rate), "the schedule has another position"


def assert_in_order(commits: list[tuple[int, int, float]], begin: int = 0) -> None:
    for end, span, _ in commits:
        assert end - span == begin, "a batch was left out or taken twice"
        assert begin // PER_EPOCH == (end - 1) // PER_EPOCH, "a step has samples of two epochs"
        begin = end


def test_each_sample_is_taken_once_and_all_ranks_take_the_same_batches_if_ranks_join_and_die_while_the_batch_changes(
    world,
) -> None:
    start(world, "a", "b", FACTORS="1,2,8,3")
    world.propose("a", "b")
    world.progressed("a", 20)
    start(world, "c", FACTORS="1,2,8,3")
    world.together("a", "b", "c")
    world.progressed("a", 20)
    world.ranks["a"].kill()  # rank 0, which decides
    world.wait("the loss is reported", lambda: world.ranks["b"].has("broken", generation=world.number))
    world.together("b", "c")
    world.progressed("b", 20)
    start(world, "d", FACTORS="1,2,8,3")
    world.propose("b", "c", "d")
    final = world.finished("b", "c", "d")
    commits = final["b"]["commits"]
    assert_in_order(commits)
    assert commits[-1][0] == EPOCHS * PER_EPOCH
    assert {1, 2, 3, 8} <= {span for _, span, _ in commits}
    for later in "cd":
        theirs = final[later]["commits"]
        assert theirs == commits[-len(theirs) :]
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert (verdict.epochs, verdict.steps, verdict.redone) == (EPOCHS, EPOCHS * PER_EPOCH, 0)
    assert_replayed(final["b"], commits)
    (effective,) = {end["effective"] for end in final.values()}
    assert 0.3 * EPOCHS * 203 < effective < EPOCHS * 203


def test_a_job_goes_on_with_its_batch_if_it_resumes_from_a_checkpoint(world) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=10)
    start(world, "a", checkpoint=spec, FACTORS="1,4")
    world.propose("a")
    world.wait("a checkpoint", lambda: world.ranks["a"].saved_step() > 10)
    world.ranks["a"].kill()
    start(world, "x", "y", checkpoint=spec, FACTORS="1,4")
    world.propose("x", "y")
    both = world.finished("x", "y")
    final = both["x"]
    commits = final["commits"]
    assert final["effective"] == both["y"]["effective"] <= EPOCHS * 203
    assert_in_order(commits, commits[0][0] - commits[0][1])
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.steps == EPOCHS * PER_EPOCH


def test_no_loop_body_has_more_samples_than_at_the_smallest_size_and_pauses_come_at_their_steps(world) -> None:
    start(world, "a", "b", batch=bounds(ranks=2), FACTORS="8", EVERY="13", epochs=3)
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    final = world.finished("a", "b")["a"]
    assert final["largest"] == 5
    assert final["paused"] == list(range(13, 3 * PER_EPOCH + 1, 13))
    assert_in_order(final["commits"])


def test_a_slow_rank_computes_fewer_samples_of_each_batch_and_the_model_is_that_of_one_process(world) -> None:
    (world.folder / "run-free").touch()
    options = {"batch": bounds(ranks=2), "shares": ShareRule.MEASURED, "FACTORS": "1,2,4", "epochs": 3}
    start(world, "a", **options, SAMPLE="0.001")
    start(world, "b", **options, SAMPLE="0.003")
    world.propose("a", "b")
    final = world.finished("a", "b")["a"]
    assert_replayed(final, final["commits"])
    assert final["largest"] <= 5, "a larger share is computed in more parts"
    assert verify(world.audit).ok
    lines = [json.loads(line) for file in world.audit.glob("b.*") for line in file.read_text().splitlines()]
    late = {line["span"]: len(line["indices"]) / (10 * line["span"]) for line in lines if line.get("step", 0) > 30}
    assert late[2] == late[4] == 0.25


@pytest.mark.parametrize("ranks", ["a", "ab"])
def test_all_ranks_measure_the_same_noise_and_scale_the_learning_rate_by_it(world, ranks) -> None:
    options = {"micro_batch_size": 5}
    adaptive = {"batch": bounds(LearningRate.ADA_SCALE), "OPTIONS": json.dumps(options)}
    start(world, *ranks, FACTORS="4", **adaptive)
    (world.folder / "run-free").touch()
    world.propose(*ranks)
    final = world.finished(*ranks)
    (one,) = {tuple(end["commits"]) for end in final.values()}
    assert final[ranks[0]]["noises"][-1] > 0
    factors = [factor for _, span, factor in one[60:] if span == 4]
    assert all(1 <= factor <= 4 for factor in factors)
    assert len(set(factors)) > 1
    assert_replayed(final[ranks[0]], list(one))
    report = world.ranks[ranks[0]].of_type("report")[-1].progress
    assert (report.batch.samples, report.batch.micro_batch) == (40, 5)
    assert report.batch.noise_scale == pytest.approx(final[ranks[0]]["noises"][-1], rel=1e-6)


class Played:
    """Rank 0 of eight, whose steps of n samples take 0.1 s and 0.005 s for each. |G|² = 1."""

    def __init__(self, weights: tuple[int, ...] = ()) -> None:
        """``weights``: of the shares."""
        self._weights = weights
        self.now, self.position, self.changes = 0.0, 0, [(0.0, 1)]
        self.batch = ChosenBatch(bounds(), clock=lambda: self.now)
        self.batch.begin_loop(ORDER)
        self._model = ElasticModule(nn.Linear(1, 1, bias=False))

    def train(self, until: float, variance: float) -> None:
        """Train until a time. ``variance``: of one sample's gradient."""
        place = Place(1, 0, 8)
        while self.now < until:
            samples = self.batch.factor * 10
            share = place.share._replace(weights=self._weights)
            step = Step(self.position, place, share, (), span=self.batch.factor, samples=samples)
            self.batch.begin_step(1 << 40, ())
            parts = (2 * (1 + variance / 5), 2 / 5, 2.0) if self.batch.small.open else (0.0, 0.0, 0.0)
            votes = (*self.batch.votes(place)[:2], *parts)
            step.decide(Known(1, Summed([0.0] * control.SIZE, (), of_batch=votes)))
            self._model.module.weight.grad = torch.full((1, 1), (1 + variance / samples) ** 0.5)
            self.batch.measure(step, self._model)
            self.now += 0.1 + 0.005 * samples
            self.position += step.span
            self.batch.commit(step)
            if self.batch.factor != self.changes[-1][1]:
                self.changes.append((self.now, self.batch.factor))


@pytest.mark.parametrize("weights", [(), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_rank_0_doubles_the_batch_at_most_each_30_seconds_up_to_the_best_goodput(weights) -> None:
    played = Played(weights)
    played.train(300, variance=200)
    batch = played.batch
    assert [factor for _, factor in played.changes][:3] == [1, 2, 4]
    assert all(30 <= b - a < 31 for (a, _), (b, _) in pairwise(played.changes[:3]))
    assert all(b - a >= 30 for (a, _), (b, _) in pairwise(played.changes))
    assert batch.noise == pytest.approx(200)
    assert 4 <= batch.factor <= 8, "most progress a second is with 63 samples"
    samples = played.position * 10
    figures = batch.figures(samples)
    assert figures.samples == batch.factor * 10
    assert figures.step_seconds == pytest.approx(0.1 + 0.005 * figures.samples)
    assert 0.8 * samples < figures.effective_samples < 0.99 * samples
    successor = ChosenBatch(bounds())
    successor.begin_loop(ORDER)
    successor.load(batch.state())
    assert (successor.factor, successor.noise, successor.lost) == (batch.factor, batch.noise, batch.lost)


def test_rank_0_decides_soon_if_a_larger_batch_pays_after_it_has_decided_to_stay() -> None:
    played = Played()
    played.train(35, variance=8)
    larger = played.batch.figures(0).larger
    assert (played.batch.factor, larger.samples) == (1, 20)
    assert larger.gain < 0.07
    played.train(59, variance=2000)
    assert [factor for _, factor in played.changes] == [1, 2]


def test_rank_0_decides_as_soon_as_the_noise_is_known_if_that_is_after_30_seconds(monkeypatch) -> None:
    monkeypatch.setattr(noise, "SETTLED", 158)  # at the 226th step, after 34 s
    played = Played()
    played.train(36, variance=200)
    assert [factor for _, factor in played.changes] == [1, 2]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order(203, 9), r"global_batch_size=9\): must be between spec.batch.min \(10\) and spec.batch.max \(80\)"),
        (Order(203, 81), r"global_batch_size=81\): must be between"),
        (Order(203, 10, batch_sampler=SimpleNamespace(batch_size=10)), "batch_sampler=….*: not with spec.batch"),
    ],
)
def test_a_loader_is_refused_with_the_way_out_if_its_batches_do_not_fit(order, words) -> None:
    with pytest.raises(ValueError, match=words):
        ChosenBatch(bounds()).begin_loop(order)


def test_a_job_is_refused_if_the_noise_of_its_gradients_is_not_measured() -> None:
    session = SimpleNamespace(welcome=SimpleNamespace(settings=RankSettings()))
    with pytest.raises(ValueError, match=r"spec.batch: not with elastrain.join\(numerics='bitwise'\)"):
        strategy_for("bitwise", session, ChosenBatch(bounds()).small)
    strategy = strategy_for("exact", session, ChosenBatch(bounds()).small)
    strategy.wrap(nn.Linear(1, 1), {})
    with pytest.raises(ValueError, match="one model and one job"):
        strategy.wrap(nn.Linear(1, 1), {})
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        strategy_for("exact", session, ChosenBatch(bounds()).small).wrap(nn.SyncBatchNorm(3), {})
