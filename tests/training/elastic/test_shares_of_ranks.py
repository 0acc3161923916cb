"""Shares follow the speeds of real ranks, of which one is slow: the model is that of equal shares."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import threaded_world
from elastrain.api.settings import RankSettings, ShareRule
from elastrain.elastic.job import Job
from elastrain_audit.judge import verify
from elastrain_bitwise.strategy import Bitwise
from elastrain_shares.follow import WINDOW
from threaded_world import RankThread, ThreadWorld, thread_world

STEPS, BATCH, SECONDS = 40, 24, 0.0005
"""Of the job; seconds that a fast rank takes for a sample, at least."""


def trained(
    folder: Path,
    rule: ShareRule,
    slow: float,
    disturb: Callable[[ThreadWorld], object] = lambda _: None,
    memory: int = BATCH,
    **cut: int,
) -> tuple[Any, list[Any], bool]:
    """The model's parameters, the samples of rank b by loop body, and whether the audit is clean.

    ``disturb``: called as a and b train. ``memory``: a rank other than b is killed at its first body of more samples.
    ``cut``: how the batch is cut further.
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
            elif len(inputs) > memory and "body" in rank.points:  # not in the warm-up
                rank.die()
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


def test_a_rank_that_runs_out_of_memory_as_its_share_grows_does_so_once(tmp_path) -> None:
    worlds = []

    def c_comes_for_a(world: ThreadWorld) -> None:
        worlds.append(world)
        world.wait("a to run out of memory", lambda: not world.alive("a"))
        world.begin("c")

    equal, *_ = trained(tmp_path / "equal", ShareRule.EQUAL, 1.0)
    measured, samples, clean = trained(tmp_path / "killed", ShareRule.MEASURED, 3.0, c_comes_for_a, memory=BATCH // 2)
    assert clean
    assert worlds[0].result("c") is not None, "c was killed too"
    assert samples[-1] == BATCH // 2
    for name, value in equal.items():
        assert torch.allclose(measured[name], value, rtol=0, atol=1e-14), name
