"""The mesh that a script gives to ``fully_shard``: the ranks of this rank's group.

FSDP and DTensor read nothing from it but the number of shards and this rank's place among them. It therefore lasts
while these stay, though generations come and go; the collectives go over the communicator in force
(:mod:`elastrain.elastic.strategies.fsdp`). Its process group has no backend: a collective that does not go through FSDP
fails in torch.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

DIMENSION = "shard"
_FIRST = 1 << 20
"""Number of the first rank of the first mesh. ``DeviceMesh`` compares by these numbers alone, and DTensor caches what
it infers, with the mesh in it, by that comparison: no other mesh of the process has them."""
_MOST = 1 << 20
"""More than the ranks of a mesh."""
_numbers = itertools.count()


def group_mesh(device_type: str, shards: int, shard: int) -> DeviceMesh:
    """A mesh of ``shards`` ranks of which this one is number ``shard``. Needs no default process group."""
    number = next(_numbers)
    group = dist.ProcessGroup(dist.HashStore(), shard, shards)
    name = f"elastrain:group:{number}"
    group._set_group_name(name)
    torch._C._distributed_c10d._register_process_group(name, group)
    first = _FIRST + number * _MOST
    ranks = torch.arange(first, first + shards)
    mesh = DeviceMesh(device_type, ranks, mesh_dim_names=(DIMENSION,), _init_backend=False, _rank=int(ranks[shard]))
    mesh._dim_group_names, mesh._pg_registry[name] = [name], group
    return mesh


def forget(mesh: DeviceMesh) -> None:
    """Release the process group of a mesh that nothing uses any more."""
    torch._C._distributed_c10d._unregister_process_group(mesh._dim_group_names[0])
