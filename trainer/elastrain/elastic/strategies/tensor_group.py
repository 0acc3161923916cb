"""The process group of tensor parallelism: DTensor's collectives over the generation in force.

``parallelize_module`` inserts collectives into forward and backward, which torch gives to the group of the mesh's
dimension. As those of FSDP they never raise because of a peer: after a loss they give zeros.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from elastrain.elastic.comm.group import RankGroup
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.torch_private import work_of

_SETUP = "a collective over job.mesh['tp'] before job.wrap(): ranks are not connected before the first step"


class Serves(Protocol):
    """What carries the collectives out."""

    def gather_parts(self, out: torch.Tensor, mine: torch.Tensor) -> None: ...

    def scatter_sums(self, out: torch.Tensor, parts: torch.Tensor) -> None: ...

    def sum_parts(self, tensor: torch.Tensor) -> None: ...


class TensorGroup(RankGroup):
    """Lasts as long as the process. torch calls the methods by these names, also for a single tensor."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
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

    getSize, getRank = RankGroup.size, RankGroup.rank

    def _served(self) -> Serves:
        if self.serves is None:
            raise RuntimeError(_SETUP)
        return self.serves


def _only_sums(options: Any) -> None:
    if options.reduceOp != dist.ReduceOp.SUM:
        raise RuntimeError("job.mesh['tp']: only sums are supported; leave loss_parallel() out (docs/sharded.md)")


def _done(tensors: list[torch.Tensor]) -> Any:
    return work_of(completed(tensors[0]))
