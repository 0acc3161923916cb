"""Calls of torch that communicate by themselves work on a sharded model whose group is a stock process group.

Each result is that of one process without FSDP. Ranks are threads of the test, connected by gloo.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate

from boundary_scripts import INPUTS, LABELS, TRAIN
from elastrain.api.settings import RankSettings
from elastrain.data.options import order_of
from elastrain.elastic.job import Job
from threaded_world import RankThread, thread_world

STEPS, BATCH, TOLERANCE = 6, 10, 1e-10
GROUPS = ("a", "b")
RANKS = tuple(f"{group}{shard}" for group in GROUPS for shard in range(2))


def build() -> nn.Sequential:
    """Its rows do not divide by the ranks. Not from the generator: ranks are threads of one process."""
    net = nn.Sequential(nn.Linear(6, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.linspace(-1, 1, p.numel(), dtype=torch.float64).reshape(p.shape).sin() * (i + 1))
    return net


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


class Factored(torch.optim.Optimizer):
    """As Adafactor, which torch 2.13 and 2.15 cannot run on sharded parameters: sums over whole rows and columns."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state, square = self.state[p], p.grad * p.grad
            rows, columns = whole(square.sum(1, keepdim=True)), whole(square.sum(0, keepdim=True))
            state["rows"] = state["rows"] * 0.9 + rows if "rows" in state else rows
            state["columns"] = state["columns"] * 0.9 + columns if "columns" in state else columns
            estimate = state["rows"] @ state["columns"] / state["rows"].mean()
            p.copy_(p - sharded_as(p, whole(p.grad) / estimate.sqrt()) * 0.05)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_as(p: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(p, DTensor):
        return tensor
    return DTensor.from_local(tensor, p.device_mesh, [Replicate()], run_check=False).redistribute(
        placements=p.placements
    )


def muon(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon(net.parameters(), lr=0.05)


Update = Callable[[nn.Module, torch.optim.Optimizer], float]


def plainly(net: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.step()
    return 0.0


def clipped(net: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def alone(make: Callable[[nn.Module], torch.optim.Optimizer], update: Update) -> tuple[dict[str, Any], list[float]]:
    net = build()
    optimizer, norms = make(net), []
    order = order_of(TRAIN, global_batch_size=BATCH, seed=3, shuffle=None, drop_last=False)
    for step in range(STEPS):
        rows = list(order.batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(INPUTS[rows]), LABELS[rows]).backward()
        norms.append(update(net, optimizer))
    return net.state_dict(), norms


@pytest.mark.parametrize(
    ("make", "update"),
    [(adam, clipped), (Factored, plainly), (muon, plainly)],
    ids=["clip_grad_norm_", "row and column statistics", "Muon"],
)
def test_the_whole_model_is_that_of_one_process(
    tmp_path: Path, make: Any, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)  # Muon of torch 2.13: to compare in float64
    monkeypatch.setattr(torch, "bfloat16", torch.float64)  # and that of 2.15

    def play(job: Job, me: RankThread) -> dict[str, Any]:
        net = build()
        for layer in (net[0], net):
            fully_shard(layer, mesh=job.mesh)
        optimizer, norms = make(net), []
        model = job.wrap(net, optimizer=optimizer)
        for x, y in job.steps(job.dataloader(TRAIN, global_batch_size=BATCH, seed=3), steps=STEPS):
            me.body()
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(model(x), y))
            norms.append(update(net, optimizer))
        full = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
        again = {name: p.full_tensor() for name, p in net.state_dict().items()}
        assert all(torch.equal(full[name], again[name]) for name in full)
        return {"full": copy.deepcopy(full), "norms": norms[-STEPS:]}

    with thread_world(tmp_path / "w", play, RankSettings(shards=2, backend="gloo")) as world:
        world.begin(*RANKS)
        world.propose(*RANKS)
        world.lead()
        ends = [world.result(rank) for rank in RANKS]
        assert all(world.error(rank) is None for rank in RANKS), world.error(RANKS[0])
    expected, norms = alone(make, update)
    for end in ends:
        assert end["norms"] == pytest.approx(norms, abs=TOLERANCE)
        for name, value in expected.items():
            assert torch.allclose(end["full"][name], value, rtol=0, atol=TOLERANCE), name
