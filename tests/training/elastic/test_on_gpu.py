"""What runs on a GPU: ``pytest -m gpu``, and ``make gpu``.

On a CPU the same tests run with gloo in NCCL's place, so that they work on the first GPU.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from bench_gpu import stand_in
from elastrain.data.order import Slice
from elastrain.elastic.comm import backend
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock.watchdog import Mates
from elastrain.elastic.comm.transport import wait_for
from elastrain.elastic.commit.vote import Vote, cast
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import StateReceiver
from elastrain.elastic.state.sender import StateSender
from elastrain.elastic.strategies.replicated import Replicated, ReplicatedModule

pytestmark = pytest.mark.gpu


@pytest.fixture
def device(monkeypatch) -> torch.device:
    if not torch.cuda.is_available():
        monkeypatch.setattr(nccl, "open_backend", stand_in.open_backend)
    return backend.device_of_rank(0)


def solo(device: torch.device) -> nccl.Nccl:
    store = nccl.IdStore(1, 0, lambda mine: [mine])
    opened = nccl.open_backend(store, 0, 1, device)
    return nccl.Nccl(opened, store, device, Mates({}))


def test_nccl_can_be_aborted_and_recreated_in_one_process(device) -> None:
    for _ in range(3):
        communicator = solo(device)
        buffer = torch.ones(1000, device=device)
        communicator.sum(buffer, Label()).wait()
        wait_for(device)
        assert buffer.tolist() == [1.0] * 1000
        assert communicator.error() is None
        communicator.abort("test")
        communicator._aborting.join(10)
        with pytest.raises(PeerLost):
            communicator.sum(buffer, Label())
        communicator.close()


def test_a_healthy_communicator_ends_in_good_order(device) -> None:
    communicator = solo(device)
    communicator.sum(torch.ones(8, device=device), Label()).wait()
    communicator.finish()
    assert communicator._finished
    communicator.close()


def test_ranks_on_one_card_sum_through_the_host_and_read_after_all_copies(pair, each, device) -> None:
    def steps(c: Communicator) -> None:
        # Not the default stream: the order must not be accidental.
        with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else nullcontext():
            for step in range(50):
                big, small = torch.full((2_000_000,), float(step), device=device), torch.ones(10, device=device)
                for future in [c.sum_bucket(big), c.sum_bucket(small)]:
                    future.wait()
                c.await_sums()
                assert small.tolist() == [2.0] * 10
                assert bool((big == 2.0 * step).all())

    each(steps, pair)


def test_gradients_of_a_model_on_a_device_are_summed(pair, each, device) -> None:
    torch.manual_seed(0)
    weights = torch.nn.Linear(64, 8).state_dict()

    def rank(c: Communicator) -> torch.Tensor:
        net = torch.nn.Linear(64, 8).to(device)
        net.load_state_dict(weights)
        model = ReplicatedModule(net)
        model(torch.ones(2, 64, device=device)).sum().backward()
        net.zero_grad()
        model.detach()
        model.attach(c, keep=True)
        loss = model(torch.full((2, 64), float(c.rank + 1), device=device)).sum()
        model.begin_backward()
        loss.backward()
        model.end_backward(c)
        assert cast(c, lambda: Vote(())).sums[0] == 2.0
        return net.weight.grad.cpu()

    for gradient in each(rank, pair):
        assert torch.equal(gradient, torch.full((8, 64), 6.0))


def test_gradients_of_several_models_on_a_device_are_summed_after_a_backward(pair, each, device) -> None:
    torch.manual_seed(0)
    ways, nets = [Replicated(), Replicated()], []
    for way in ways:
        nets.append([torch.nn.Linear(64, 8).to(device), torch.nn.Linear(8, 1).to(device)])
        for net in nets[-1]:
            way.wrap(net, {})
    part = Slice((0,), (0,), weight=0.5, epoch=0)

    def rank(c: Communicator) -> torch.Tensor:
        x = torch.full((2, 64), float(c.rank + 1), device=device)
        loss = nets[c.rank][0](x).sum()
        ways[c.rank].backward(loss, loss, part, c, last=True)
        c.await_sums()
        ways[c.rank].whole().scale_gradients(1.0)
        assert nets[c.rank][1].weight.grad is None
        return nets[c.rank][0].weight.grad.cpu()

    for gradient in each(rank, pair):
        assert torch.equal(gradient, torch.full((8, 64), 3.0))


@pytest.mark.parametrize("reuse", [True, False])
def test_state_travels_from_device_to_device(reuse, pair, each, device) -> None:
    theirs = {
        "w": torch.randn(700_000, device=device),
        "small": torch.randn(9, device=device),
        "step": torch.tensor(3.0),
    }
    mine = {"w": torch.zeros(700_000, device=device)}

    def rank(c: Communicator) -> Any:
        if c.rank == 1:
            return StateReceiver(mine if reuse else None, c, Transfer([0], [1])).complete()
        return StateSender(theirs, c, Transfer([0], [1])).pause()

    received = each(rank, pair)[1]
    for name, value in theirs.items():
        assert torch.equal(received[name].cpu(), value.cpu())
        assert received[name].device.type == (value.device.type if reuse else "cpu")
    assert (received["w"].data_ptr() == mine["w"].data_ptr()) == reuse
