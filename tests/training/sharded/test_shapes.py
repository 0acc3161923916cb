"""Replicas of any shape: a pipeline, experts, context parallelism. Each is an example, and equals one process.

Promises 1, 2, 4 and 5. A worker is one group: two ranks along the dimension of the shape, over which ``fully_shard``
spreads the parameters besides where a test says so.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastrain.api.settings import CheckpointSpec
from elastrain.api.shape import SHARDS, Shape
from elastrain.data.options import order_of

EXAMPLES = {path.parent.name[3:]: path for path in (Path(__file__).parents[3] / "examples").glob("1[123]-*/train.py")}
SHAPES, STEPS, TOLERANCE = ("pipeline", "experts", "context"), 40, 1e-10


@cache
def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def alone(name: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The same training in this process: the parameters, and the loss of each step."""
    module = example(name)
    model = {"pipeline": "whole", "experts": "net", "context": "Net"}[name]
    net = getattr(module, model)().double()
    data = module.data() if name == "context" else module.data(torch.float64)
    order = order_of(data, global_batch_size=22, seed=0, shuffle=None, drop_last=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        x, y = data[list(order.batch(step))]
        optimizer.zero_grad()
        loss = module.loss_of(net(x), y)
        loss = loss / len(y) if name == "pipeline" else loss
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return {key: value.detach() for key, value in net.state_dict().items()}, losses


def losses(name: str) -> list[float]:
    return alone(name)[1]


def put_together(name: str, shape: Shape, ends: list[dict]) -> dict[str, torch.Tensor]:
    """The whole model, of the ranks of a group."""
    rows = [shape.along(shard, SHARDS) for shard in range(shape.size) if not shape.coordinates(shard)[SHARDS]]
    first, second = (
        {key: torch.cat([ends[shard]["state"][key] for shard in row]) for key in ends[row[0]]["state"]} for row in rows
    )
    if name == "pipeline":
        assert not first.keys() & second.keys()
        return first | second
    found = {}
    for key, value in first.items():
        if "experts" in key:
            found[key] = torch.cat([value, second[key]])
        else:
            assert torch.equal(value, second[key]), f"{key}: differs between ranks that hold it alike"
            found[key] = value
    return found


def assert_equal(name: str, shape: Shape, ends: list[dict]) -> None:
    expected, _ = alone(name)
    for group in range(0, len(ends), shape.size):
        found = put_together(name, shape, ends[group : group + shape.size])
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=0, atol=TOLERANCE), key


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "shards", "role"),
    [(name, 1, role) for name in SHAPES for role in (1, 0)]
    + [(name, 2, role) for name, role in zip(SHAPES, (0, 3, 2), strict=True)],
)
def test_a_shape_trains_as_one_process_while_a_rank_is_killed_and_a_group_joins_and_leaves(
    shape_job, name, shards, role
) -> None:
    """``shards``: ranks over which ``fully_shard`` spreads each parameter. ``role``: place in its group of the rank
    that is killed; its mates keep their processes."""
    job = shape_job
    job.example, job.shards = EXAMPLES[name], shards
    job.want(1)
    job.start("a", steps=STEPS)
    first = job.together("a")
    job.start("b", steps=STEPS)
    job.want(2)
    second = job.together("a", "b", after=first)
    before = job.pids("a"), job.pids("b")
    job.kill("b", role)
    third = job.together("a", "b", after=second)
    after = job.pids("a"), job.pids("b")
    assert after[1].pop(str(role)) != before[1].pop(str(role))
    assert after == before, "a rank that was not killed has another process"
    job.want(1, leaving=("b",))
    job.together("a", after=third)
    ends = job.ends("a")
    assert_equal(name, job.shape, ends)
    assert len({end["loss"] for end in ends}) == 1
    assert ends[0]["loss"] == pytest.approx(losses(name)[-1], rel=1e-9)
    job.verdict()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "shards", "later"),
    [*((name, 1, 1) for name in SHAPES), ("pipeline", 2, 1), ("experts", 2, 2), ("experts", 2, 1)],
)
def test_a_shape_resumes_from_its_checkpoint_if_all_ranks_are_lost(shape_job, name, shards, later, tmp_path) -> None:
    """``shards``: over which ``fully_shard`` spreads each parameter; of the job that resumes: ``later``."""
    job = shape_job
    job.example, job.shards = EXAMPLES[name], shards
    checkpoint = CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=2)
    job.want(1)
    job.start("a", steps=STEPS, delay=1.0, checkpoint=checkpoint)  # too slow to end before it is killed
    job.together("a")
    job.wait("a checkpoint", lambda: list(tmp_path.glob("checkpoints/*/.metadata")))
    job.kill_all()
    job.shards = later
    job.want(2, min=2)  # a group that comes late would find the job at its end
    job.start("b", "c", steps=STEPS, checkpoint=checkpoint)
    ends = job.ends("b", "c")
    assert "resumed from checkpoint" in job["b"].out() + job["c"].out()
    assert_equal(name, job.shape, ends)


@pytest.mark.nightly
def test_a_job_ends_with_the_parameter_if_ranks_of_a_group_differ_in_what_they_hold_alike(shape_job) -> None:
    job = shape_job
    job.example = EXAMPLES["context"]
    job.want(1)
    job.start("a", steps=STEPS, every=3)
    job.together("a")
    (job.folder / "spoil").touch()
    ended = job["a"].ends()
    assert ended.outcome == "failed"
    assert re.search(r"rank 0 and rank 1, along cp of job.mesh, differ in letters.weight", ended.message), ended.message
