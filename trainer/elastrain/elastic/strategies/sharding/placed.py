"""Where the parameters of a sharded model lie in the mesh of their group, and what follows from it. Pure.

A dimension of the mesh that has *cut* a parameter gives each of its ranks another part. Along any other dimension the
ranks hold the same, except for the stages of a pipeline, which have other parameters. Gradients are summed over the
dimensions that divide the batch or a sequence and have not cut the parameter, and over the groups.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from torch import nn

from elastrain.api.shape import SHARDS, Divides, Shape
from elastrain.elastic import torch_private
from elastrain.elastic.state.parts import dims

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_NOT_YET = "is not supported with spec.parallelism.shards yet (docs/sharded.md)"


def cut(p: nn.Parameter) -> frozenset[str]:
    """The dimensions that have cut it."""
    return frozenset(name for name, dim in dims(p.data) if dim is not None)


def may_be_alike(shape: Shape) -> tuple[str, ...]:
    """The dimensions along which parameters can be the same."""
    return tuple(d.name for d in shape.dimensions if d.name != SHARDS and d.divides is not Divides.LAYERS)


def holders(p: nn.Parameter, shape: Shape) -> int:
    """Ranks of a group that hold the same part of it."""
    return prod(shape.named(name).size for name in may_be_alike(shape) if name not in cut(p))


def summed(p: nn.Parameter, shape: Shape) -> tuple[str, ...]:
    """The dimensions over which elastrain sums its gradient, besides the groups; ``fully_shard`` serves its own one."""
    return tuple(name for name in shape.dividing(Divides.BATCH, Divides.SEQUENCE) if name not in cut(p))


def check(module: nn.Module, mesh: DeviceMesh | None, shape: Shape) -> None:
    """Raises ``ValueError`` naming what does not lie on ``mesh`` as it must."""
    ours = "job.mesh" if mesh is None or mesh.ndim == 1 else f"job.mesh['{SHARDS}']"
    for name, m in module.named_modules():
        if isinstance(m, nn.SyncBatchNorm):
            raise ValueError(f"job.wrap(): {name}: SyncBatchNorm {_NOT_YET}; use GroupNorm or LayerNorm")
    for name, p in module.named_parameters():
        if why := _misplaced(p, mesh, shape, ours):
            raise ValueError(f"job.wrap(): parameter {name} {why}")
    for d in shape.dimensions:
        if d.divides is Divides.TENSORS and d.size > 1 and all(d.name not in cut(p) for p in module.parameters()):
            raise ValueError(
                f"job.wrap(): no layer is computed by several ranks along {d.name}, and spec.parallelism has "
                f"{d.size} there: call parallelize_module(layer, job.mesh['{d.name}'], plan) before fully_shard, or "
                "leave the dimension out"
            )


def _misplaced(p: nn.Parameter, mesh: DeviceMesh | None, shape: Shape, ours: str) -> str:
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(p, DTensor):
        return (
            "is not sharded, and spec.parallelism.shards is more than 1: call "
            f"fully_shard(layer, mesh={ours}) for the layers, and at last fully_shard(net, mesh={ours})"
        )
    names = p.device_mesh.mesh_dim_names or ()
    if torch_private.root_of(p.device_mesh) is not mesh or SHARDS not in names:
        return (
            f"is sharded over another mesh, {p.device_mesh}: give fully_shard mesh={ours}, and parallelize_module "
            "another dimension of job.mesh (docs/sharded.md)"
        )
    placed = dict(zip(names, p.placements, strict=True))
    if isinstance(placed[SHARDS], Replicate) or any(placement.is_partial() for placement in p.placements):
        return f"has placements {p.placements}: fully_shard must shard it"
    for name, placement in placed.items():
        divides = shape.named(name).divides
        if name != SHARDS and divides is Divides.LAYERS:
            return f"lies on {name}, whose ranks have layers of their own: leave that dimension out"
        if name != SHARDS and divides is not Divides.TENSORS and isinstance(placement, Replicate):
            return (
                f"is replicated over {name}, which divides the {divides.value.lower()}: leave that dimension out of "
                f"its mesh (fully_shard(layer, mesh={ours})), and elastrain sums its gradient over it"
            )
    return ""
