"""Models that elastrain cannot train yet are refused, not trained wrongly."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastrain.api.settings import RankSettings
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.strategies.strategy import refuse_sharded


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def test_a_plain_model_is_accepted() -> None:
    refuse_sharded(net())


def test_a_model_is_refused_if_its_layers_are_sharded_by_fully_shard(world_of_one) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model[1], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(
        ValueError, match=r"job\.wrap\(\): 1 is wrapped by FSDP2 \(fully_shard\); pass the plain module"
    ):
        refuse_sharded(model)


def test_a_model_is_refused_if_its_parameters_are_spread_over_ranks(world_of_one) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    model = net()
    model[0].weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (1,))))
    with pytest.raises(ValueError, match=r"parameter 0\.weight is a DTensor"):
        refuse_sharded(model)


def test_a_model_is_refused_if_it_is_replicated_already(world_of_one) -> None:
    with pytest.raises(ValueError, match="the model is wrapped by DistributedDataParallel; pass the plain module"):
        refuse_sharded(nn.parallel.DistributedDataParallel(net()))


@pytest.mark.parametrize("shards", [4, "all"])
def test_bitwise_numerics_are_refused_with_the_reason_if_the_model_is_sharded(shards) -> None:
    session = SimpleNamespace(welcome=SimpleNamespace(settings=RankSettings(shards=shards)))
    said = f"shards is {shards}: the bits of a sum over shards depend on the number of ranks .* Use numerics='exact'"
    with pytest.raises(ValueError, match=said):
        strategy_for("bitwise", session)
