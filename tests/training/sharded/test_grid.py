"""The mesh of a group with tensor parallelism: its parts of tensors are those of torch, and misuse has an error."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh as torch_meshes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, _collective_utils
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from elastrain.api.shape import Shape
from elastrain.elastic.checkpoint import Grid
from elastrain.elastic.state import parts
from elastrain.elastic.strategies.sharding.sharded import Sharded

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def torch_asks_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (torch_meshes, _collective_utils):
        monkeypatch.setattr(module, "get_rank", module.get_rank)


def layer() -> nn.Linear:
    return nn.Linear(10, 12, device="meta")


@pytest.mark.parametrize("shard", range(6))
@pytest.mark.parametrize(
    ("style", "name", "dims"),
    [
        (ColwiseParallel(), "weight", (0, 0)),
        (ColwiseParallel(), "bias", (0, 0)),
        (RowwiseParallel(), "weight", (0, 1)),
        (RowwiseParallel(), "bias", (0, None)),
        (None, "weight", (0,)),
    ],
    ids=["column", "column bias", "row", "row bias", "whole"],
)
def test_a_part_is_what_torch_leaves_a_rank(shard, style, name, dims) -> None:
    """Of 14 rows: 7 for each of two ranks, which three ranks cut into 3, 3 and 1."""
    torch.manual_seed(0)
    mesh, model = Sharded(Shape.of(6, 2), shard).mesh(CPU), nn.Linear(8, 14)
    whole = getattr(model, name).detach().clone()
    if style is not None:
        parallelize_module(model, mesh["tp"], style, src_data_rank=None)
    fully_shard(model, mesh=mesh["dp_shard"])
    part = parts.taken(getattr(model, name).data)
    assert tuple(dim for _, dim in part.dims) == dims
    for dim, (start, size) in enumerate(zip(*Grid(shard, Shape.of(6, 2)).chunk(part.shape, part.dims), strict=True)):
        whole = whole.narrow(dim, start, size)
    assert torch.equal(part.local, whole)
    again = parts.put({"model": part}, model, [model])["model"]
    assert again._spec == getattr(model, name).data._spec


def test_all_or_parts_of_the_mesh_know_this_ranks_place() -> None:
    mesh = Sharded(Shape.of(6, 2), 3).mesh(CPU)
    assert mesh.get_coordinate() == (1, 1)
    assert (mesh["dp_shard"].get_local_rank(), mesh["tp"].get_local_rank()) == (1, 1)
    assert (mesh["dp_shard"].size(), mesh["tp"].size()) == (3, 2)


def test_a_mesh_is_refused_if_torch_numbers_the_ranks_otherwise() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match=r"job\.mesh: .* default process group.* leave .* out"):
            Sharded(Shape.of(2, 2), 0).mesh(CPU)
    finally:
        dist.destroy_process_group()


def test_a_layer_is_refused_with_the_way_out_if_a_rank_would_have_to_give_the_others_their_part() -> None:
    mesh = Sharded(Shape.of(2, 2), 1).mesh(CPU)
    with pytest.raises(RuntimeError, match=r"parallelize_module\(\): .* meta device.* src_data_rank=None"):
        parallelize_module(nn.Linear(4, 4), mesh["tp"], ColwiseParallel())


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_shard_is_not_saved_for_the_whole_model_and_can_be_copied(tensor) -> None:
    mesh = Sharded(Shape.of(2 * tensor, tensor), 0).mesh(CPU)
    model = nn.Linear(8, 14)
    if tensor > 1:
        parallelize_module(model, mesh["tp"], ColwiseParallel(), src_data_rank=None)
    fully_shard(model, mesh=mesh["dp_shard"])
    with pytest.raises(
        RuntimeError, match=r"torch\.save\(\) .*this rank's part alone.*full_state_dict=True.*spec\.checkpoint"
    ):
        torch.save(model.state_dict(), io.BytesIO())
    again = copy.deepcopy(model.state_dict())["weight"]
    assert again.device_mesh == model.weight.device_mesh
    assert torch.equal(again.to_local(), model.weight.to_local())


def test_a_model_is_refused_if_no_layer_is_cut_or_fully_shard_has_left_one_out() -> None:
    strategy = Sharded(Shape.of(4, 2), 0)
    model = layer()
    fully_shard(model, mesh=strategy.mesh(CPU)["dp_shard"])
    with pytest.raises(ValueError, match=r"no layer is computed by several ranks along tp, .* has 2 there: call"):
        strategy.wrap(model, {})
    cut = parallelize_module(layer(), strategy.mesh(CPU)["tp"], ColwiseParallel())
    with pytest.raises(ValueError, match=r"parameter weight is sharded over another mesh.*job\.mesh\['dp_shard'\]"):
        strategy.wrap(cut, {})


@pytest.fixture
def summed() -> Iterator[tuple[Sharded, torch.distributed.tensor.DTensor]]:
    """A wrapped model, and a tensor whose sum over the ranks of a layer is wanted."""
    strategy = Sharded(Shape.of(2, 2), 0)
    mesh = strategy.mesh(CPU)
    model = parallelize_module(layer(), mesh["tp"], ColwiseParallel())
    fully_shard(model, mesh=mesh["dp_shard"])
    strategy.wrap(model, {})
    yield strategy, torch.distributed.tensor.ones(4, device_mesh=mesh["tp"], placements=[Shard(0)])


def test_a_collective_is_refused_before_the_model_is_wrapped_and_outside_of_loop_bodies(summed) -> None:
    early = Sharded(Shape.of(2, 2), 0).mesh(CPU)["tp"]
    with pytest.raises(RuntimeError, match=r"before job\.wrap\(\)"):
        torch.distributed.tensor.ones(4, device_mesh=early, placements=[Shard(0)]).full_tensor()
    with pytest.raises(RuntimeError, match="which run equally many in the loop body"):
        summed[1].full_tensor()


def test_a_collective_gives_stand_ins_without_a_generation_and_after_the_vote_they_void_the_update(summed) -> None:
    """For parts of other ranks, this rank's own; for their sums, zeros."""
    strategy, tensor = summed
    strategy.whole().in_body = lambda: True
    assert tensor.full_tensor().tolist() == [1.0] * 4
    assert DTensor.from_local(torch.ones(4), tensor.device_mesh, [Partial()]).full_tensor().tolist() == [0.0] * 4
    scattered = DTensor.from_local(torch.ones(4), tensor.device_mesh, [Partial()]).redistribute(placements=[Shard(0)])
    assert scattered.to_local().tolist() == [0.0] * 2
    assert not strategy.whole().void
    strategy.whole()._comm.vote()
    tensor.full_tensor()
    assert "lost in the update of the step" in strategy.whole().void
    strategy.begin_step()
    assert not strategy.whole().void
