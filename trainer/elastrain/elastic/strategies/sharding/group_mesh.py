"""The mesh that a script gives to ``fully_shard`` and ``parallelize_module``: the ranks of this rank's group.

FSDP and DTensor read nothing from it but the number of shards and this rank's place among them. It therefore lasts
while these stay, though generations come and go: the groups of its dimensions (:class:`InnerGroup`) exchange what
connects their ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from elastrain.api.shape import SHARDS, Shape
from elastrain.elastic import torch_private
from elastrain.elastic.strategies.sharding.inner_group import InnerGroup

_FIRST = 1 << 20
"""Number of the first rank of the first mesh. ``DeviceMesh`` compares by these numbers alone, and DTensor caches what
it infers, with the mesh in it, by that comparison: no other mesh of the process has them."""
_MOST = 1 << 20
"""More than the ranks of a mesh."""
_numbers = itertools.count()


def group_mesh(device_type: str, shape: Shape, shard: int) -> tuple[DeviceMesh, list[InnerGroup]]:
    """The mesh of the ranks of a group, of which this one is number ``shard``, and the groups of its dimensions.

    Needs no default process group, and raises ``RuntimeError`` if torch has one, with several dimensions.
    """
    number, own = next(_numbers), shape.coordinates(shard)
    first = _FIRST + number * _MOST
    ranks = torch.arange(first, first + shape.size).view([d.size for d in shape.dimensions])
    groups = {d.name: InnerGroup(d.name, own[d.name], d.size) for d in shape.dimensions}
    if len(groups) > 1:
        _tell_meshes_their_rank(first + shard, [group for name, group in groups.items() if name != SHARDS])
    mesh = torch_private.make_mesh(device_type, ranks, first + shard, groups, number)
    return mesh, list(groups.values())


def _tell_meshes_their_rank(rank: int, inner: Sequence[dist.ProcessGroup]) -> None:
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
        if any(group is each for each in inner):
            raise RuntimeError(
                "parallelize_module(): ranks are not connected before the first step, so none can give the others "
                "their part of a layer: build the model on the meta device, or with the same seed on all ranks and "
                "src_data_rank=None (docs/sharded.md)"
            )
        return int(dist.get_rank(group))

    torch_private.number_ranks_by(get_rank, scatters)
