"""The mesh that a script gives to ``fully_shard`` and ``parallelize_module``: the ranks of this rank's group.

FSDP and DTensor read nothing from it but the number of shards and this rank's place among them. It therefore lasts
while these stay, though generations come and go: the groups of its dimensions (:class:`InnerGroup`) exchange what
connects their ranks.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from elastrain.elastic import torch_private
from elastrain.elastic.strategies.inner_group import InnerGroup

SHARDS, TENSOR = "dp_shard", "tp"
"""Names of the dimensions, as torchtitan has them."""
_FIRST = 1 << 20
"""Number of the first rank of the first mesh. ``DeviceMesh`` compares by these numbers alone, and DTensor caches what
it infers, with the mesh in it, by that comparison: no other mesh of the process has them."""
_MOST = 1 << 20
"""More than the ranks of a mesh."""
_numbers = itertools.count()


def group_mesh(device_type: str, shards: int, shard: int, tensor: int = 1) -> tuple[DeviceMesh, list[InnerGroup]]:
    """A mesh of ``shards`` ranks of which this one is number ``shard``, and the groups of its dimensions.

    ``tensor``: ranks of its second dimension, which are neighbours; 1: it has one dimension. Needs no default process
    group, and raises ``RuntimeError`` if torch has one, with two dimensions.
    """
    number = next(_numbers)
    first = _FIRST + number * _MOST
    ranks = torch.arange(first, first + shards)
    groups = {SHARDS: InnerGroup(SHARDS, shard // tensor, shards // tensor)}
    if tensor > 1:
        groups[TENSOR], ranks = InnerGroup(TENSOR, shard % tensor, tensor), ranks.view(-1, tensor)
        _tell_meshes_their_rank(first + shard, groups[TENSOR])
    mesh = torch_private.make_mesh(device_type, ranks, first + shard, groups, number)
    return mesh, list(groups.values())


def _tell_meshes_their_rank(rank: int, tensor: dist.ProcessGroup) -> None:
    """Parts of the mesh, which torch makes itself, ask ``torch.distributed`` for this rank's number: by its default
    process group, of which a job has none."""
    if dist.is_initialized():
        raise RuntimeError(
            "job.mesh: torch.distributed has a default process group, by which torch would number the ranks of the "
            "mesh: leave dist.init_process_group() out, or call it after the model is sharded"
        )

    def get_rank(group: Any = None) -> int:
        return rank if group is None else int(group.rank())

    def scatters(group: Any = None) -> int:
        if group is tensor:
            raise RuntimeError(
                "parallelize_module(): ranks are not connected before the first step, so none can give the others "
                "their part of a layer: build the model on the meta device, or with the same seed on all ranks and "
                "src_data_rank=None (docs/sharded.md)"
            )
        return int(dist.get_rank(group))

    torch_private.number_ranks_by(get_rank, scatters)
