"""Synchronised batch norm is that of one device on the whole batch; the ranks are threads of the test."""

from pathlib import Path

import pytest
import torch
from torch import nn

from elastrain.elastic.strategies import batchnorm
from elastrain.elastic.undo.leaves import Leaves

SCRIPT = Path(__file__).parent / "train_options.py"
INPUTS = torch.randn(11, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
RUNS = [range(6), range(6, 11), range(0)]
"""Samples of three ranks, the last one with a stand-in."""


def network(norm: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 2), norm(4), nn.ReLU(), nn.Conv2d(4, 2, 2)).double()


def loss_of(net: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return net(inputs).pow(2).flatten(1).sum(1).mean()


def test_it_is_batch_norm_over_the_whole_batch_if_the_ranks_have_unequal_parts(connect, each) -> None:
    alone = network(nn.BatchNorm2d)
    expected = loss_of(alone, INPUTS)
    expected.backward()
    ranks = [network(nn.SyncBatchNorm) for _ in RUNS]
    assert all(batchnorm.adopt(net) for net in ranks)

    def on(communicator) -> torch.Tensor:
        run = RUNS[communicator.rank]
        with batchnorm.over(communicator, counts=bool(run)):
            loss = loss_of(ranks[communicator.rank], INPUTS[list(run) or [0]]) * (len(run) / len(INPUTS))
            loss.backward()
        assert not communicator.broken
        return loss.detach()

    assert sum(each(on, connect(3))) == pytest.approx(expected.item())
    for name, parameter in alone.named_parameters():
        total = sum(net.get_parameter(name).grad for net in ranks)
        assert torch.allclose(total, parameter.grad), name
    for name, buffer in alone.named_buffers():
        assert all(torch.allclose(net.get_buffer(name), buffer) for net in ranks), name


def test_the_step_is_marked_as_broken_and_nothing_is_raised_if_a_rank_is_lost(connect) -> None:
    waiting, gone = connect(2)
    net = network(nn.SyncBatchNorm)
    batchnorm.adopt(net)
    gone.abort("gone")
    with batchnorm.over(waiting, counts=True):
        loss_of(net, INPUTS).backward()
    assert waiting.broken


def test_it_is_local_outside_of_the_loop_and_fixed_in_evaluation() -> None:
    net, plain = network(nn.SyncBatchNorm), network(nn.BatchNorm2d)
    batchnorm.adopt(net)
    assert torch.allclose(loss_of(net, INPUTS), loss_of(plain, INPUTS))
    net.eval(), plain.eval()
    assert torch.allclose(loss_of(net, INPUTS), loss_of(plain, INPUTS))


def test_a_discarded_step_leaves_no_trace_in_running_statistics() -> None:
    net = network(nn.BatchNorm2d)
    net.register_buffer("constant", torch.ones(3))
    leaves = Leaves({"model": net})
    leaves.begin(whole=True)
    fresh = {name: b.clone() for name, b in net.named_buffers()}

    def assert_like(expected: dict[str, torch.Tensor]) -> None:
        assert all(torch.equal(b, expected[name]) for name, b in net.named_buffers())

    net(INPUTS)
    leaves.end()
    assert not leaves.restore()
    assert [*leaves.tensors.changing] == ["model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked"]
    assert_like(fresh)
    leaves.begin(whole=False)
    net(INPUTS)  # committed
    leaves.end()
    committed = {name: b.clone() for name, b in net.named_buffers()}
    leaves.begin(whole=False)
    net(INPUTS[:5])
    assert not leaves.restore()
    assert_like(committed)


@pytest.mark.timeout(300)  # four processes that import torch, on a busy machine
def test_model_and_statistics_are_those_of_one_rank_if_the_world_shrinks_while_it_trains(world, tmp_path_factory):
    def start(where, *ranks: str) -> None:
        for rank in ranks:
            seed = str(len(where.ranks))
            where.start(rank, epochs=6, delay=0.2, script=SCRIPT, LOADER="{}", SEED=seed, RANDOM="0", NORM="sync")
        where.ready(*ranks)
        where.propose(*ranks)

    alone = type(world)(tmp_path_factory.mktemp("alone"), world.warm)
    start(alone, "a")
    expected = alone.finished("a")["a"]
    start(world, "a", "b", "c")
    world.adopted("a", "b", "c")
    world.progressed("a", 4)
    world.ranks["c"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in "ab"))
    world.propose("a", "b")
    final = world.finished("a", "b")
    assert "1.running_mean" in expected["model"]
    for name, value in expected["model"].items():
        for rank in "ab":
            assert torch.allclose(final[rank]["model"][name], value, rtol=0, atol=1e-6), (rank, name)
    assert final["a"]["losses"] == pytest.approx(expected["losses"])
