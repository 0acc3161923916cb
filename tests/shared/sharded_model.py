"""The model of ``tests/training/sharded``, trained by one process without FSDP."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

import torch
from torch import nn

from elastrain.data.options import order_of

SCRIPT = Path(__file__).parents[1] / "training" / "sharded" / "train_fsdp.py"
STEPS = 40
TOLERANCE = 1e-10


@cache
def script():
    sys.argv = ["", "", "0", "0"]
    spec = importlib.util.spec_from_file_location("train_fsdp", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def alone(steps: int, width: int = 13) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The same training in this process, without FSDP: parameters, and the norm of each step's gradient."""
    model, data = script().net(width), script().data()
    order = order_of(data, global_batch_size=11, seed=3, shuffle=None, drop_last=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    norms = []
    for step in range(steps):
        x, y = data[list(order.batch(step))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
    return model.state_dict(), norms


def whole(shards: list[dict], name: str, tensor: int) -> torch.Tensor:
    """The parameter of which the ranks of a group have saved their parts; ``tensor`` neighbours compute together."""
    over = shards[0]["dims"].get(name) or (0,)
    columns = [torch.cat([end["state"][name] for end in shards[t::tensor]], over[0]) for t in range(tensor)]
    if len(over) == 2 and over[1] is not None:
        return torch.cat(columns, over[1])
    assert all(torch.equal(column, columns[0]) for column in columns), f"{name}: differs where it must be the same"
    return columns[0]


def assert_same_model(ends: dict[str, list[dict]], steps: int = STEPS, *, tensor: int = 1, width: int = 13) -> None:
    expected, _ = alone(steps, width)
    groups = list(ends.values())
    for shards in groups:
        assert [end["step"] for end in shards] == [steps] * len(shards)
        for name, value in expected.items():
            assert torch.allclose(whole(shards, name, tensor), value, rtol=0, atol=TOLERANCE), name
            same = [torch.equal(a["state"][name], b["state"][name]) for a, b in zip(shards, groups[0], strict=True)]
            assert all(same), f"{name}: replicas of a shard differ"
