"""Where parameters lie in the mesh of a group: which sums their gradients need, and what would be silently wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed.device_mesh as torch_meshes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, _collective_utils, distribute_tensor

from elastrain.api.shape import MeshDimension, Shape
from elastrain.elastic.strategies.sharding import alike, placed
from elastrain.elastic.strategies.sharding.sharded import Sharded

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def torch_asks_itself_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (torch_meshes, _collective_utils):
        monkeypatch.setattr(module, "get_rank", module.get_rank)
    yield


def shape(**sizes: int) -> Shape:
    return Shape.from_mesh([MeshDimension(name=name, size=size) for name, size in sizes.items()])


class Layer(nn.Module):
    """A router and experts, of which ``dimension`` has cut the weights by ``placement``."""

    def __init__(self, strategy: Sharded, dimension: str = "", placement: Shard | Replicate | None = None) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        if dimension:
            mesh = strategy.mesh(CPU)[dimension]
            weight = distribute_tensor(self.experts.weight.data, mesh, [placement or Shard(0)], src_data_rank=None)
            self.experts.weight = nn.Parameter(weight)


def sharded(strategy: Sharded, layer: nn.Module, *modules: nn.Module) -> nn.Module:
    for module in (*modules, layer):
        fully_shard(module, mesh=strategy.mesh(CPU)["dp_shard"])
    return layer


def test_a_gradient_is_summed_over_what_divides_the_loss_and_has_not_cut_its_parameter() -> None:
    of = shape(pp=2, dp_shard=2, cp=3, tp=2, ep=2)
    strategy = Sharded(of, 5)
    layer = Layer(strategy, "ep")
    sharded(strategy, layer, layer.experts)
    assert placed.summed(layer.router.weight, of) == ("cp", "ep")
    assert placed.summed(layer.experts.weight, of) == ("cp",)
    assert placed.holders(layer.router.weight, of) == 3 * 2 * 2
    assert placed.holders(layer.experts.weight, of) == 3 * 2


@pytest.mark.parametrize(
    ("sizes", "dimension", "placement", "words"),
    [
        ({"dp_shard": 2, "ep": 2}, "ep", Replicate(), r"experts.weight is replicated over ep, which divides the batch"),
        ({"dp_shard": 1, "cp": 2}, "cp", Replicate(), r"is replicated over cp, which divides the sequence"),
        ({"dp_shard": 1, "pp": 2}, "pp", Shard(0), r"lies on pp, whose ranks have layers of their own"),
        ({"dp_shard": 1, "tp": 2}, "", None, r"no layer is computed by several ranks along tp"),
    ],
)
def test_a_parameter_is_refused_by_name_if_its_gradient_would_be_wrong(sizes, dimension, placement, words) -> None:
    strategy = Sharded(shape(**sizes), 0)
    layer = Layer(strategy, dimension, placement)
    sharded(strategy, layer, layer.experts)
    with pytest.raises(ValueError, match=words):
        strategy.wrap(layer, {})


def test_a_module_is_refused_if_its_gradients_need_different_sums() -> None:
    strategy = Sharded(shape(dp_shard=1, ep=2), 0)
    layer = sharded(strategy, Layer(strategy, "ep"))
    with pytest.raises(ValueError, match=r"experts.weight needs a sum over no dimension, .* over \('ep',\)"):
        strategy.wrap(layer, {})


def test_ranks_that_differ_along_a_dimension_are_found_and_named() -> None:
    of = shape(dp_shard=2, cp=2, tp=2)
    equal = [[rank // 4, 7] for rank in range(16)]
    assert alike.first_apart(equal, ["cp", "tp"], of) is None, "other shards are other numbers"
    other = [[*row] for row in equal]
    other[13][1] = 8
    assert alike.first_apart(other, ["cp", "tp"], of) == ("tp", 12, 13)
    text = alike.described("tp", 12, 13, ["a", "b", "c", "d"], 5)
    assert text.startswith("after step 5 rank 12 and rank 13, along tp of job.mesh, differ in a, b, c and 1 more")
