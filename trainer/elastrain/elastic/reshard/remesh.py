"""The tensors that FSDP2 has sharded, and how each of them is put on another number of shards, in place.

Parameter objects stay, and with them the keys of the optimizer's state. FSDP2 has no public way for it: see
:mod:`elastrain.elastic.torch_private`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.parts import bounds
from elastrain.elastic.torch_private import fsdp_params, local_of, pytree, replace_shard


def check(model: nn.Module) -> None:
    """Raises ``ValueError`` naming what of ``model`` cannot change its number of shards."""
    names = {id(p): name for name, p in model.named_parameters()}
    for p in fsdp_params(model):
        name = names.get(id(p.sharded_param), "?")
        (placement,) = p.sharded_param.placements
        if placement != Shard(0):
            raise ValueError(
                f"job.wrap(): parameter {name} is sharded in dimension {placement.dim}, which not every number of "
                "ranks divides: with shards: all leave fully_shard's shard_placement_fn out"
            )
        if p.post_forward_mesh_info not in (None, p.mesh_info):
            raise ValueError(
                f"job.wrap(): parameter {name}: fully_shard(reshard_after_forward=<int>) names a number of ranks; with "
                "shards: all give True or False"
            )
        if p.offload_to_cpu:
            raise ValueError(f"job.wrap(): parameter {name}: CPUOffloadPolicy is not supported with shards: all yet")


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A parameter, or a tensor that an optimizer keeps of one."""

    name: str
    tensor: Any
    """The live ``DTensor``."""
    param: Any = None
    """FSDP's record of it, if it is a parameter."""

    @property
    def rows(self) -> int:
        """Of the whole tensor."""
        return int(self.tensor.shape[0])

    @property
    def row_bytes(self) -> int:
        nbytes: int = torch.Size(self.tensor.shape[1:]).numel() * self.local.element_size()
        return nbytes

    @property
    def local(self) -> torch.Tensor:
        """This rank's rows."""
        return local_of(self.tensor)

    def allocate(self, shards: int) -> torch.Tensor:
        """Memory for a shard of ``shards``: of the height of the first one, which FSDP wants for all."""
        shape = [bounds(self.rows, shards, 0)[1], *self.tensor.shape[1:]]
        return torch.zeros(shape, dtype=self.tensor.dtype, device=self.local.device)

    def install(self, padded: torch.Tensor, info: Any) -> None:
        """From now on it lies on the mesh of ``info`` (FSDP's ``FSDPMeshInfo``), this rank's rows in ``padded``."""
        low, high = bounds(self.rows, info.shard_mesh_size, info.shard_mesh_rank)
        replace_shard(self.tensor, padded[: high - low], padded, info, self.param)


def sharded_tensors(tracked: Mapping[str, Stateful]) -> list[ShardedTensor]:
    """All sharded tensors of the tracked objects, in an order that is the same on all ranks.

    Raises ``ValueError`` naming an object that keeps sharded tensors in another way than modules and optimizers.
    """
    found: list[ShardedTensor] = []
    for key, obj in tracked.items():
        if isinstance(obj, nn.Module):
            params = {id(p.sharded_param): p for p in fsdp_params(obj)}
            tensors = [*obj.named_parameters(), *obj.named_buffers()]
            found += [ShardedTensor(f"{key}/{n}", t, params.get(id(t))) for n, t in tensors if isinstance(t, DTensor)]
        elif isinstance(obj, torch.optim.Optimizer):
            found += [ShardedTensor(f"{key}/{n}", t) for n, t in _kept(obj)]
        elif any(isinstance(value, DTensor) for value in pytree.tree_leaves(obj.state_dict())):
            raise ValueError(f"job.track({key}=…): keeps sharded tensors, and is neither a module nor an optimizer")
    return found


def _kept(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(value, DTensor):
                yield f"{number}/{name}", value
