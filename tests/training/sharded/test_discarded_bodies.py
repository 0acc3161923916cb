"""A loop body that is discarded does not fail the script, whatever it computes from the numbers that stand in for those
of a lost rank: replicated and sharded, with and without activation checkpointing. Ranks are threads of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from boundary_scripts import INPUTS, LABELS, TRAIN
from conditions import eventually
from elastrain.api.settings import RankSettings
from elastrain.elastic.job import Job
from elastrain_audit.judge import verify
from threaded_world import RankThread, ThreadWorld, thread_world

STEPS, DIES = 6, 3
GROUPS = ("a", "b")


class Picky(nn.Module):
    """Computed again in the backward, it branches by the values of its parameters, as a router does."""

    def __init__(self, *, checkpointing: bool) -> None:
        super().__init__()
        self.inner, self.checkpointing = nn.Linear(8, 8), checkpointing
        self.seen = torch.zeros(())

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        value = self.inner.weight.detach().sum()
        if torch._C._current_graph_task_id() == -1:  # the forward
            self.seen = value
        y = self.inner(x).tanh()
        return y if value == self.seen else y.exp().sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.branch, x, use_reentrant=False) if self.checkpointing else self.branch(x)


class Branches(nn.Module):
    """Uses the first layer, and one of the two others or none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        y = self.layers[0](x)
        return y + self.layers[which](x) if which else y


def build(*, checkpointing: bool) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 8), Picky(checkpointing=checkpointing), nn.Linear(8, 3)).double()
    with torch.no_grad():  # not from the generator: ranks are threads of one process
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.linspace(-1, 1, p.numel(), dtype=torch.float64).reshape(p.shape) * (i + 1) / 5)
    return net


def broken(job: Job) -> bool:
    communicator = job._world.communicator
    return communicator is not None and communicator.broken is not None


def raising(job: Job) -> None:
    if broken(job):
        raise ValueError("a value that cannot be")


def script(where: str, *, sharded: bool, checkpointing: bool) -> Callable[[Job, RankThread], dict[str, Any]]:
    def train(job: Job, me: RankThread) -> dict[str, Any]:
        net = build(checkpointing=checkpointing)
        for layer in (net[1], net) if sharded else ():
            fully_shard(layer, mesh=job.mesh)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        model = job.wrap(net, optimizer=optimizer)
        loader = job.dataloader(TRAIN, global_batch_size=10, seed=3)

        def in_backward(_: torch.Tensor) -> None:
            me.at("backward")
            if where == "hook":
                raising(job)

        for x, y in job.steps(loader, steps=STEPS):
            me.body()
            optimizer.zero_grad()
            if where == "forward":
                me.at("backward")
            outputs = model(x)
            if where == "forward":
                raising(job)
            loss = nn.functional.cross_entropy(outputs, y)
            loss.register_hook(in_backward)
            if where == "continue" and job._loop.step.number == DIES:
                me.at("backward")
                if broken(job):
                    continue
            job.backward(loss)
            if where == "after":
                raising(job)
            optimizer.step()
        state = net.state_dict()
        return {"step": job.step, "state": {k: v.to_local() if sharded else v for k, v in state.items()}}

    return train


def alone(*, checkpointing: bool) -> dict[str, torch.Tensor]:
    from elastrain.data.options import order_of

    net = build(checkpointing=checkpointing)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    order = order_of(TRAIN, global_batch_size=10, seed=3, shuffle=None, drop_last=False)
    for step in range(STEPS):
        rows = list(order.batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(INPUTS[rows]), LABELS[rows]).backward()
        optimizer.step()
    return net.state_dict()


def ranks_of(group: str, *, sharded: bool) -> list[str]:
    return [f"{group}{shard}" for shard in range(2)] if sharded else [group]


def begin(world: ThreadWorld, *, sharded: bool) -> None:
    """The last rank dies in step ``DIES``, and no other goes on in it before the generation has broken."""
    ranks = [rank for group in GROUPS for rank in ranks_of(group, sharded=sharded)]
    world.kills[ranks[-1]] = "backward", DIES
    kill = world.threads.on_point

    def on_point(rank: RankThread, point: str, step: int) -> None:
        kill(rank, point, step)
        if point == "backward" and step == DIES and rank.job is not None and len(world.members) == len(ranks):
            in_step = lambda: all(world.thread(r).points.get("backward") == DIES for r in ranks)  # noqa: E731
            eventually(in_step, 60, "all to be in the step")  # else one may wait for the result of the step before
            eventually(lambda: ranks[-1] not in world.alive(), 60, f"{ranks[-1]} to die")
            rank.job._world.communicator.abort(f"{ranks[-1]} is lost")

    world.threads.on_point = on_point
    world.begin(*ranks)
    world.propose(*ranks)


def settings(*, sharded: bool) -> RankSettings:
    return RankSettings(shards=2 if sharded else 1)


IN_CI = [(False, True, "hook"), (True, False, "hook"), (True, False, "continue"), (True, True, "nothing")]
CASES = [
    pytest.param(*case, marks=() if case in IN_CI else pytest.mark.nightly)
    for sharded in (False, True)
    for checkpointing in (False, True)
    for where in ("nothing", "hook", *(("continue",) if sharded else ()))
    for case in [(sharded, checkpointing, where)]
]


@pytest.mark.parametrize(("sharded", "checkpointing", "where"), CASES)
def test_the_survivors_go_on_in_process_with_the_right_model_if_the_backward_of_a_discarded_body_fails(
    tmp_path: Path, sharded: bool, checkpointing: bool, where: str
) -> None:
    """Without a hook, the layer that is computed again saves other tensors than in the forward."""
    play = script(where, sharded=sharded, checkpointing=checkpointing)
    with thread_world(tmp_path / "w", play, settings(sharded=sharded)) as world:
        begin(world, sharded=sharded)
        world.lead()
        survivors = ranks_of("a", sharded=sharded)
        ends = [world.thread(rank).final for rank in survivors]
        assert verify(world.audit).ok, verify(world.audit)
        assert all(not world.ranks[rank].has("misplaced") for rank in survivors)
    expected = alone(checkpointing=checkpointing)
    assert [end["step"] for end in ends] == [STEPS] * len(survivors)
    for name, value in expected.items():
        own = torch.cat([end["state"][name] for end in ends])
        assert torch.allclose(own, value, rtol=0, atol=1e-12), name


@pytest.mark.parametrize(
    ("sharded", "where"), [(False, "after"), (True, "after"), (True, "forward")], ids=lambda v: str(v)
)
def test_the_rank_starts_anew_and_has_not_failed_if_code_of_the_script_fails_in_a_discarded_body(
    tmp_path: Path, sharded: bool, where: str
) -> None:
    play = script(where, sharded=sharded, checkpointing=False)
    with thread_world(tmp_path / "w", play, settings(sharded=sharded)) as world:
        begin(world, sharded=sharded)
        for name in ranks_of("a", sharded=sharded):
            rank = world.ranks[name]
            world.wait(f"{name} to ask", lambda rank=rank: rank.has("misplaced", ahead=True))
            assert "ValueError: a value that cannot be" in rank.of_type("misplaced")[0].why
            assert not any(x.leaves for x in rank.of_type("broken")), "it has not failed"
            assert rank.process.poll() is None, "its agent ends it"


@pytest.mark.parametrize("alike", [True, False], ids=["gradients of one size", "another number of gradients"])
def test_ranks_that_use_different_parameters_fail_with_their_names_and_the_way_out(tmp_path: Path, alike: bool) -> None:
    """Of one size they would be added without an error. Else the first rank that sees it fails, and so the job."""

    def play(job: Job, me: RankThread) -> dict[str, Any]:
        net = Branches().double()
        fully_shard(net, mesh=job.mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = job.wrap(net, optimizer=optimizer)
        for x, y in job.steps(job.dataloader(TRAIN, global_batch_size=10, seed=3), steps=2):
            which = 1 if me.worker == "a0" else 2 if alike else 0
            job.backward(nn.functional.cross_entropy(model(x, which), y))
            optimizer.step()
        return {}

    with thread_world(tmp_path / "w", play, settings(sharded=True)) as world:
        world.begin("a0", "a1")
        world.propose("a0", "a1")
        eventually(lambda: len(world.alive()) < (1 if alike else 2), 60, "them to end")
        texts = [world.ranks[name].log.read_text() for name in {"a0", "a1"} - set(world.alive())]
    assert all("RanksDiverged: " in text and "set_reduce_scatter_unused_params(True)" in text for text in texts), texts
    assert all("layers.1.weight" in text or "layers.2.weight" in text for text in texts), texts
