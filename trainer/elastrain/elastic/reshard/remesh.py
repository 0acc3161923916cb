"""The tensors that FSDP2 has sharded, and how each of them is put on another number of shards, in place.

Parameter objects stay, and with them the keys of the optimizer's state. FSDP2 has no public way for it: this module is
the only one that uses its private names, of torch 2.13, and :func:`check` says so if they are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.parts import bounds

_PARAM_NAMES = (
    "mesh_info", "post_forward_mesh_info", "_shard_mesh", "_spmd_mesh", "_sharding_spec", "sharded_size",
    "contiguous_sharded_stride", "padded_sharded_param_size", "_sharded_param_data", "all_gather_outputs",
    "unsharded_accumulated_grad", "sharded_param", "offload_to_cpu",
)  # fmt: skip


def check(model: nn.Module) -> None:
    """Raises ``ValueError`` naming what of ``model`` cannot change its number of shards, and ``RuntimeError`` if this
    torch has another FSDP2."""
    names = {id(p): name for name, p in model.named_parameters()}
    for p in _fsdp_params(model):
        if missing := [name for name in _PARAM_NAMES if not hasattr(p, name)]:
            raise RuntimeError(
                f"spec.parallelism.shards: all needs the FSDP2 of torch 2.13; torch {torch.__version__} has no "
                f"FSDPParam.{missing[0]}: install torch 2.13, or set shards to a number"
            )
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
        rows: torch.Tensor = self.tensor._local_tensor
        return rows

    def allocate(self, shards: int) -> torch.Tensor:
        """Memory for a shard of ``shards``: of the height of the first one, which FSDP wants for all."""
        shape = [bounds(self.rows, shards, 0)[1], *self.tensor.shape[1:]]
        return torch.zeros(shape, dtype=self.tensor.dtype, device=self.local.device)

    def install(self, padded: torch.Tensor, mesh: DeviceMesh, info: FSDPMeshInfo) -> None:
        """From now on it lies on ``mesh``, this rank's rows in ``padded``."""
        low, high = bounds(self.rows, info.shard_mesh_size, info.shard_mesh_rank)
        spec = DTensorSpec(mesh, (Shard(0),), tensor_meta=self.tensor._spec.tensor_meta)
        self.tensor._local_tensor, self.tensor._spec = padded[: high - low], spec
        if (p := self.param) is None:
            return
        self.tensor.grad = p.unsharded_accumulated_grad = None
        p.mesh_info, p._shard_mesh, p._spmd_mesh, p._sharding_spec = info, mesh, mesh, spec
        p.post_forward_mesh_info = None if p.post_forward_mesh_info is None else info
        p.sharded_size = torch.Size([high - low, *self.tensor.shape[1:]])
        p.contiguous_sharded_stride = make_contiguous_strides_for(p.sharded_size)
        p.padded_sharded_param_size, p._sharded_param_data = padded.size(), padded.view(-1)
        p.all_gather_outputs = []  # of the old size; FSDP makes them again
        if hasattr(p, "_unsharded_param"):
            del p._unsharded_param


def sharded_tensors(tracked: Mapping[str, Stateful]) -> list[ShardedTensor]:
    """All sharded tensors of the tracked objects, in an order that is the same on all ranks.

    Raises ``ValueError`` naming an object that keeps sharded tensors in another way than modules and optimizers.
    """
    found: list[ShardedTensor] = []
    for key, obj in tracked.items():
        if isinstance(obj, nn.Module):
            params = {id(p.sharded_param): p for p in _fsdp_params(obj)}
            tensors = [*obj.named_parameters(), *obj.named_buffers()]
            found += [ShardedTensor(f"{key}/{n}", t, params.get(id(t))) for n, t in tensors if isinstance(t, DTensor)]
        elif isinstance(obj, torch.optim.Optimizer):
            found += [ShardedTensor(f"{key}/{n}", t) for n, t in _kept(obj)]
        elif any(isinstance(value, DTensor) for value in torch.utils._pytree.tree_leaves(obj.state_dict())):
            raise ValueError(f"job.track({key}=…): keeps sharded tensors, and is neither a module nor an optimizer")
    return found


def fsdp_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """The modules that ``fully_shard`` was called for."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def finish(model: nn.Module, info: FSDPMeshInfo) -> None:
    """All parameters of ``model`` lie on the mesh of ``info``."""
    for group in _groups(model):
        group.mesh_info = info
        group.post_forward_mesh_info = None if group.post_forward_mesh_info is None else info


def _kept(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(value, DTensor):
                yield f"{number}/{name}", value


def _groups(model: nn.Module) -> Iterator[Any]:
    for module in fsdp_modules(model):
        yield from module._get_fsdp_state()._fsdp_param_groups


def _fsdp_params(model: nn.Module) -> Iterator[Any]:
    for group in _groups(model):
        yield from group.fsdp_params
