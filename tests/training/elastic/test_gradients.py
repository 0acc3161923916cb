"""Gradients over real groups, with the ranks as threads of the test."""

import pytest
import torch
from torch import nn

from elastrain.data.order import Order
from elastrain.elastic.strategies.replicated import Replicated
from elastrain_bitwise import strategy as bitwise
from elastrain_bitwise.strategy import Bitwise

INPUTS = torch.randn(23, 6, generator=torch.Generator().manual_seed(0))
ORDER = Order(23, 23, shuffle=False, micro_batches=8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 1))


def one_step(way: Bitwise, net: nn.Module, model: nn.Module, communicator) -> tuple[torch.Tensor, float]:
    place = (0, communicator.rank, communicator.world_size)
    parts = ORDER.micro_slices(*place)
    way.begin_step()
    for part in parts:
        last = part is parts[-1]
        with way.body(part, communicator):
            loss = model(INPUTS[list(part.fetch)]).pow(2).mean()
            way.backward(loss, loss, part, communicator, last=last)
    return torch.cat(
        [torch.zeros(1) if p.grad is None else p.grad.flatten() for p in net.parameters()]
    ).clone(), way.loss


@pytest.fixture
def bits(connect, each):
    """Gradients and loss of a step as each rank sees them, by world size."""

    def of(world_size: int, steps: int = 2) -> list[tuple[bytes, float]]:
        torch.set_num_threads(1)
        networks = [network() for _ in range(world_size)]

        def on(communicator) -> list[tuple[bytes, float]]:
            way, net = Bitwise(), networks[communicator.rank]
            model = way.wrap(net, {})
            results = [one_step(way, net, model, communicator) for _ in range(steps)]
            assert not communicator.broken
            return [(gradients.numpy().tobytes(), loss) for gradients, loss in results]

        return [result for rank in each(on, connect(world_size)) for result in rank]

    return of


def test_gradients_have_the_same_bits_on_any_number_of_ranks_even_more_than_micro_batches(bits) -> None:
    assert len({result for world in (1, 2, 3, 5, 10) for result in bits(world)}) == 1


@pytest.mark.parametrize("piece", [1000, 97])
def test_gradients_have_the_same_bits_if_they_are_added_in_pieces(bits, monkeypatch, piece) -> None:
    whole = set(bits(1))
    monkeypatch.setattr(bitwise, "PIECE", piece)
    assert {result for world in (2, 3, 10) for result in bits(world)} == whole


def test_several_models_have_the_same_bits_on_any_number_of_ranks(connect, each) -> None:
    def of(world_size: int) -> set[bytes]:
        pairs = [(network(), network()) for _ in range(world_size)]

        def on(communicator) -> bytes:
            way, (one, other) = Bitwise(), pairs[communicator.rank]
            models = [way.wrap(net, {}) for net in (one, other)]
            both = lambda x: models[0](x) * models[1](2 * x)  # noqa: E731
            gradients, _ = one_step(way, way.whole(), both, communicator)
            return gradients.numpy().tobytes()

        return set(each(on, connect(world_size)))

    found = of(1) | of(3)
    assert len(found) == 1
    assert len(next(iter(found))) == 4 * 2 * sum(p.numel() for p in network().parameters())


def test_gradients_are_those_of_the_mean_over_the_batch(bits) -> None:
    (found, loss), *_ = bits(3)
    net = network()
    expected = net(INPUTS).pow(2).mean()
    expected.backward()
    gradients = torch.cat([p.grad.flatten() for p in net.parameters()])
    assert torch.allclose(torch.frombuffer(bytearray(found), dtype=torch.float32), gradients, atol=1e-6)
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_the_group_is_broken_and_a_new_one_gives_the_same_bits_if_a_rank_is_lost_in_the_middle(connect, bits) -> None:
    waiting, gone = connect(2)
    way, net = Bitwise(), network()
    model = way.wrap(net, {})
    gone.abort("gone")
    one_step(way, net, model, waiting)
    assert waiting.broken
    (alone,) = connect(1, number=2)
    gradients, loss = one_step(way, net, model, alone)
    assert (gradients.numpy().tobytes(), loss) in bits(1)


def test_error_names_the_argument_if_the_numerics_exclude_it() -> None:
    with pytest.raises(ValueError, match="micro_batches"):
        Bitwise().check(Order(10, 5))
    with pytest.raises(ValueError, match="micro_batches"):
        Replicated().check(ORDER)
    with pytest.raises(ValueError, match="static_graph"):
        Bitwise().wrap(network(), {"static_graph": True})
    with pytest.raises(ValueError, match="1 is a SyncBatchNorm"):
        Bitwise().wrap(nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4)), {})
    with pytest.raises(ValueError, match="several backwards in a loop body"):
        Bitwise().several_backwards()
    replicated = Replicated()
    replicated.wrap(nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4)), {})
    with pytest.raises(ValueError, match=r"micro_batch_size=.*SyncBatchNorm"):
        replicated.check(Order(10, 5, micro_batch_size=2))
    with pytest.raises(RuntimeError, match=r"running_mean.*GroupNorm"):
        Bitwise().check_warm_up(["1.running_mean"])
