"""The mesh that a script gives to ``fully_shard`` and ``parallelize_module``: the ranks of this rank's group.

FSDP and DTensor read nothing from it but the number of shards and this rank's place among them. It therefore lasts
while these stay, though generations come and go. FSDP's collectives go over the communicator in force by an interface
of its own (:mod:`elastrain.elastic.strategies.fsdp`), and the process group of its dimension has no backend: a
collective of other code fails in torch. The second dimension, of tensor parallelism, has a group that serves DTensor
(:class:`TensorGroup`): ``parallelize_module`` inserts collectives into forward and backward, which torch gives to the
group of the dimension. As those of FSDP they never raise because of a peer: after a loss they give zeros.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from elastrain.elastic import torch_private
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.torch_private import work_of

SHARDS, TENSOR = "dp_shard", "tp"
"""Names of the dimensions, as torchtitan has them."""
_FIRST = 1 << 20
"""Number of the first rank of the first mesh. ``DeviceMesh`` compares by these numbers alone, and DTensor caches what
it infers, with the mesh in it, by that comparison: no other mesh of the process has them."""
_MOST = 1 << 20
"""More than the ranks of a mesh."""
_numbers = itertools.count()


def group_mesh(device_type: str, shards: int, shard: int, tensor: dist.ProcessGroup | None = None) -> DeviceMesh:
    """A mesh of ``shards`` ranks of which this one is number ``shard``. Needs no default process group.

    ``tensor``: the group of its second dimension, whose ranks are neighbours; None: it has one dimension. Raises
    ``RuntimeError`` if torch has a default process group, with one of two dimensions.
    """
    number = next(_numbers)
    first = _FIRST + number * _MOST
    ranks = torch.arange(first, first + shards)
    size = 1 if tensor is None else tensor.size()
    groups = {SHARDS: dist.ProcessGroup(dist.HashStore(), shard // size, shards // size)}
    if tensor is not None:
        _tell_meshes_their_rank(first + shard, tensor)
        groups[TENSOR], ranks = tensor, ranks.view(-1, size)
    return torch_private.make_mesh(device_type, ranks, first + shard, groups, number)


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


_SETUP = "a collective over job.mesh['tp'] before job.wrap(): ranks are not connected before the first step"


class Serves(Protocol):
    """What carries the collectives out."""

    def gather_parts(self, out: torch.Tensor, mine: torch.Tensor) -> None: ...

    def scatter_sums(self, out: torch.Tensor, parts: torch.Tensor) -> None: ...

    def sum_parts(self, tensor: torch.Tensor) -> None: ...


class TensorGroup(dist.ProcessGroup):
    """Lasts as long as the process. torch calls the methods by these names, also for a single tensor."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self.serves: Serves | None = None
        """Set by ``job.wrap()``."""

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        _only_sums(options)
        for tensor in tensors:
            self._served().sum_parts(tensor)
        return _done(tensors)

    def allgather_into_tensor_coalesced(self, outs: list[torch.Tensor], mine: list[torch.Tensor], _options: Any) -> Any:
        for out, part in zip(outs, mine, strict=True):
            self._served().gather_parts(out, part)
        return _done(outs)

    def reduce_scatter_tensor_coalesced(
        self, outs: list[torch.Tensor], wholes: list[torch.Tensor], options: Any
    ) -> Any:
        _only_sums(options)
        for out, parts in zip(outs, wholes, strict=True):
            self._served().scatter_sums(out, parts)
        return _done(outs)

    def broadcast(self, tensors: list[torch.Tensor], _options: Any) -> Any:
        """Of a layer that is replicated, in the set-up: the state of all ranks begins as that of the first of them."""
        return _done(tensors)

    def getBackendName(self) -> str:
        return "elastrain"

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    getSize, getRank = size, rank

    def _served(self) -> Serves:
        if self.serves is None:
            raise RuntimeError(_SETUP)
        return self.serves


def _only_sums(options: Any) -> None:
    if options.reduceOp != dist.ReduceOp.SUM:
        raise RuntimeError("job.mesh['tp']: only sums are supported; leave loss_parallel() out (docs/sharded.md)")


def _done(tensors: list[torch.Tensor]) -> Any:
    return work_of(completed(tensors[0]))
