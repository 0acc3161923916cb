"""Two models in Fabric's loop, each clipped by its own norm: as with Fabric alone, whatever becomes of the ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from threaded_world import ThreadWorld

STEPS = 12


class Gan:
    """A generator and its judge, both trained in each step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.data = TensorDataset(torch.randn(96, 4, generator=generator, dtype=torch.float64))
        self.maker, self.judge = (nn.Linear(4, 4).double(), nn.Linear(4, 1).double())
        for parameter in (*self.maker.parameters(), *self.judge.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.5) for m in (self.maker, self.judge)]

    def train(self, fabric, batches, at=lambda: None) -> list[torch.Tensor]:
        (maker, of_maker), (judge, of_judge) = (
            fabric.setup(model, optimizer)
            for model, optimizer in zip((self.maker, self.judge), self.optimizers, strict=True)
        )
        for (batch,) in batches():
            at()
            made = maker(batch * 3)
            loss = (judge(made) - judge(batch) + 0.1 * made).square().mean()
            fabric.backward(loss)
            fabric.clip_gradients(judge, of_judge, max_norm=0.5)
            fabric.clip_gradients(maker, of_maker, clip_val=0.05)
            for optimizer in (of_judge, of_maker):
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach().clone() for p in (*self.maker.parameters(), *self.judge.parameters())]


@pytest.fixture
def alone(require) -> list[torch.Tensor]:
    """The parameters by Fabric without a job, in the order of the data."""
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from lightning.fabric import Fabric

    gan = Gan()
    loader = DataLoader(gan.data, batch_size=8)
    return gan.train(Fabric(accelerator="cpu", devices=1), lambda: loader)


@pytest.fixture
def world(tmp_path, monkeypatch):
    from lightning.fabric import Fabric, wrappers

    # Fabric notes in a global variable whether its backward runs: ranks that are threads would clear each other's.
    monkeypatch.setattr(wrappers, "_backward_hook", lambda *_: None)

    from elastrain_frameworks.lightning import ElasticStrategy

    def script(job, rank):
        gan = Gan()
        loader = job.dataloader(gan.data, global_batch_size=8, shuffle=False)
        fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job))
        return gan.train(fabric, lambda: job.steps(loader, steps=STEPS), rank.body)

    made = ThreadWorld(tmp_path, script)
    yield made
    made.close()


def assert_equal(world, rank, expected) -> None:
    assert world.error(rank) is None, world.ranks[rank].log.read_text()
    for mine, its in zip(world.result(rank), expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)


def test_both_models_are_those_of_fabric_alone_if_a_rank_is_lost(world, alone) -> None:
    world.kills["b"] = ("body", 5)
    world.train("a", "b")
    world.lead()
    assert_equal(world, "a", alone)


def test_both_models_are_those_of_fabric_alone_if_a_rank_joins(world, alone) -> None:
    world.allow(4)
    world.train("a")
    world.hold("a", step=4)
    world.begin("b")
    world.propose("a", "b")
    world.connected("a")
    world.allow(STEPS)
    world.lead()
    for rank in ("a", "b"):
        assert_equal(world, rank, alone)
