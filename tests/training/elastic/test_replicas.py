"""Replicas are compared while they train: a bit that flips on one rank is found, named and repaired.

The ranks are threads. A script flips a bit of what it trains, where memory or arithmetic would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from boundary_scripts import nothing
from conditions import eventually
from elastrain.api.settings import CheckpointSpec, DivergenceSpec, RankSettings, WithoutMajority
from elastrain.elastic.body.replica_check import ReplicaDiffers
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.job import Job
from threaded_world import RankThread, ThreadWorld, thread_world

STEPS, AT = 8, 3
"""Of the job; committed steps when a bit flips."""
RANKS = ("r0", "r1", "r2")
EACH_STEP = DivergenceSpec(every_steps=1)


def flip(tensor: torch.Tensor, bit: int = 30) -> None:
    """Change one bit in the middle of ``tensor``, past autograd and its versions."""
    words = tensor.detach().view(torch.int32).flatten()
    words[len(words) // 2] ^= 1 << bit


def parameter(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    flip(net[0].weight)


def moment(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    flip(optimizer.state[net[2].weight]["exp_avg_sq"], bit=3)


def buffer(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    flip(net.scale.data.view(1), bit=0)


def gradient(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    flip(net[2].bias.grad)


class Flips:
    """By committed steps: the rank on which a bit flips, and which; each once."""

    def __init__(self, **of: tuple[Callable[..., None], Sequence[int]]) -> None:
        self.of = {(int(rank[1:]), step): what for rank, (what, steps) in of.items() for step in steps}

    def take(self, rank: int, step: int, *, gradients: bool) -> Callable[..., None]:
        what = self.of.get((rank, step))
        if what is None or (what is gradient) is not gradients:
            return lambda *_: None
        return self.of.pop((rank, step))


def script(job: Job, flips: Flips, statistics: nn.Module | None = None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 4, generator=generator, dtype=torch.float64))
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), statistics or nn.Identity()).double()
    net.register_buffer("scale", torch.ones((), dtype=torch.float64))
    for p in net.parameters():  # torch's own generator belongs to all threads
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    job.on_commit(lambda: flips.take(job.rank, job.step, gradients=False)(net, optimizer))
    for (x,) in job.steps(job.dataloader(data, global_batch_size=12, seed=3), steps=STEPS):
        optimizer.zero_grad()
        job.backward((model(x) * net.scale).square().mean())
        if job.committed:
            flips.take(job.rank, job.step, gradients=True)(net, optimizer)
        optimizer.step()
    return {"state": [p.detach().clone() for p in net.parameters()], "step": job.step}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., ThreadWorld]]:
    """``run(flips, ranks, divergence)``: the ended job; a generation follows each that breaks. ``fail``: ranks end with
    an error. ``fails``: the rank that does, and the others go on."""
    worlds: list[ThreadWorld] = []

    def job(
        flips: Flips | None = None,
        ranks: Sequence[str] = RANKS,
        divergence: DivergenceSpec = EACH_STEP,
        *,
        checkpoint: CheckpointSpec | None = None,
        statistics: Callable[[], nn.Module | None] = lambda: None,
        fail: bool = False,
        fails: str = "",
    ) -> ThreadWorld:
        folder = tmp_path / f"{len(worlds)}"
        settings = RankSettings(divergence=divergence, checkpoint=checkpoint)
        world = ThreadWorld(folder, lambda job, _: script(job, flips or Flips(), statistics()), settings)
        worlds.append(world)
        world.train(*ranks)
        if fail or fails:
            world.wait = lambda what, condition: eventually(condition, what=what)
        if fails:
            eventually(lambda: world.ranks[fails].has("broken"), what="a difference")
            world.propose(*ranks)
            eventually(lambda: world.ranks[fails].process.poll() is not None, what=f"the end of {fails}")
        world.serve(*[rank for rank in ranks if rank != fails])
        return world

    yield job
    for world in worlds:
        world.close()


def causes(world: ThreadWorld) -> list[str]:
    return [message.error for rank in world.ranks.values() for message in rank.of_type("broken")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[torch.Tensor]:
    world = ThreadWorld(tmp_path_factory.mktemp("undisturbed"), lambda job, _: script(job, Flips()))
    world.train(*RANKS)
    world.serve(*RANKS)
    world.close()
    return world.result("r0")["state"]


@pytest.mark.parametrize(
    ("what", "entry", "at"),
    [
        (parameter, "model.0.weight", AT),
        (moment, "optimizer.state[2].exp_avg_sq", STEPS),
        (buffer, "model.scale", AT),
        (gradient, "model.2.bias", STEPS),
    ],
)
def test_a_rank_takes_the_state_of_the_majority_and_the_model_is_that_of_an_undisturbed_run(
    run, undisturbed, what, entry, at
):
    step = at - 1 if what is gradient else at
    world = run(Flips(r1=(what, [step])))
    assert world.number == 2
    assert all(f"states of step {at} differ: rank 1 from ranks 0, 2 in {entry}" in cause for cause in causes(world))
    assert len(causes(world)) == len(RANKS)
    for rank in RANKS:
        result = world.result(rank)
        assert result["step"] == STEPS
        assert all(torch.equal(a, b) for a, b in zip(result["state"], undisturbed, strict=True))


def test_a_rank_fails_if_it_differs_again(run):
    world = run(Flips(r1=(moment, [2, 4])), fails="r1")
    assert isinstance(world.error("r1"), ReplicaDiffers)
    assert "not for the first time" in str(world.error("r1"))
    assert {world.result(rank)["step"] for rank in ("r0", "r2")} == {STEPS}


@pytest.mark.parametrize("policy", list(WithoutMajority))
def test_the_job_fails_and_names_the_entry_if_two_ranks_differ_without_a_checkpoint(run, policy):
    divergence = DivergenceSpec(every_steps=1, without_majority=policy)
    world = run(Flips(r1=(parameter, [AT])), RANKS[:2], divergence, fail=True)
    for rank in RANKS[:2]:
        assert isinstance(world.error(rank), RanksDiverged)
        assert "rank 1 from rank 0 in model.0.weight; they were equal after step 2" in str(world.error(rank))
        assert world.ranks[rank].has("diverged")


def test_the_job_goes_back_to_a_checkpoint_from_before_the_difference_if_two_ranks_differ(run, tmp_path, undisturbed):
    checkpoint = CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=1, keep=9)
    divergence = DivergenceSpec(every_steps=1, without_majority=WithoutMajority.RESUME)
    world = run(Flips(r1=(parameter, [AT])), RANKS[:2], divergence, checkpoint=checkpoint)
    assert world.number == 2
    assert {world.result(rank)["step"] for rank in RANKS[:2]} == {STEPS}
    for rank in RANKS[:2]:
        for a, b in zip(world.result(rank)["state"], undisturbed, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_joiner_takes_the_state_again_if_a_bit_has_flipped_after_it_arrived(tmp_path):
    def joined(job: Job, me: RankThread) -> dict[str, Any]:
        handover, flips = job._world._handover, [me.worker == "c"]
        load = handover._load

        def flipped(tree: dict[str, Any]) -> None:
            load(tree)
            if tree["position"]["step"] and flips and flips.pop():
                flip(job._tracked["model"][0].weight)

        handover._load = flipped
        return nothing(job, me)

    def ended(folder: Path, *joins: str) -> dict[str, Any]:
        with thread_world(folder, joined, RankSettings(divergence=EACH_STEP)) as world:
            world.allow(3)
            world.begin("a", "b")
            world.propose("a", "b")
            if joins:
                world.hold("a", "b", step=3)
                world.begin(*joins)
                world.propose("a", "b", *joins)
                world.connected("a", "b")
            world.allow(1 << 30)
            world.lead()
            said = [m.error for rank in world.ranks.values() for m in rank.of_type("broken")]
            assert bool(said) == bool(joins)
            assert all("differ: rank 2 from ranks 0, 1 in model.0.weight" in cause for cause in said)
            finals = [world.thread(rank).final["state"] for rank in world.ranks]
        assert all(torch.equal(finals[0][name], final[name]) for final in finals for name in final)
        return finals[0]

    alone, grown = ended(tmp_path / "alone"), ended(tmp_path / "grown", "c")
    for name, value in alone.items():
        torch.testing.assert_close(grown[name], value, rtol=1e-12, atol=1e-14)


def test_statistics_of_each_rank_are_no_difference(run):
    world = run(statistics=lambda: nn.BatchNorm1d(1))
    assert world.number == 1
    assert not causes(world)


def test_nothing_is_found_if_replicas_are_not_compared(run):
    world = run(Flips(r1=(parameter, [AT])), divergence=DivergenceSpec(every_steps=0))
    assert not causes(world)
    first, second = (world.result(rank)["state"] for rank in ("r0", "r1"))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
