"""The process group that DDP is given: DDP's own collectives, over the connections of a generation.

A communication hook sums the gradients (:mod:`elastrain.elastic.strategies.replicated`). Beside it, DDP itself
broadcasts the order of its buckets once, and with ``find_unused_parameters`` or ``static_graph`` it sums a map of the
parameters in use. Python subclasses of ``ProcessGroup`` carry DDP in torch's own tests (``test_c10d_pypg.py``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.torch_private import work_of


class RankGroup(dist.ProcessGroup):
    """What torch asks of every group that is written in Python."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

    def getBackendName(self) -> str:
        return "elastrain"

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


class DdpGroup(RankGroup):
    """The ranks of ``communicator``'s generation; this rank alone if it is None.

    No method raises because of a peer. After a failure each rank keeps its own values and the generation is broken.
    """

    def __init__(self, communicator: Communicator | None = None) -> None:
        rank, size = (communicator.rank, communicator.world_size) if communicator else (0, 1)
        super().__init__(rank, size)
        self._communicator = communicator

    def allreduce(self, tensors: list[torch.Tensor], _options: Any) -> Any:
        """Sum over the ranks, in place. DDP uses no other operation."""
        return _work(tensors, [self._sum(tensor) for tensor in tensors])

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        """The values of rank ``options.rootRank``. Blocks, and leaves the tensors alone if the generation is broken."""
        for tensor in tensors:
            sent = tensor.clone() if self._rank == options.rootRank else torch.zeros_like(tensor)
            self._sum(sent).wait()
            if sent.is_cuda:  # an aborted kernel leaves garbage: read ``broken`` after it has ended
                torch.cuda.current_stream(sent.device).synchronize()
            if self._communicator is None or self._communicator.broken is None:
                tensor.copy_(sent)
        return _work(tensors, [])

    def _sum(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        return completed(tensor) if self._communicator is None else self._communicator.sum_bucket(tensor, Kind.DDP)


def sum_sparse(communicator: Communicator, gradient: torch.Tensor) -> torch.Tensor:
    """The sum of a sparse COO ``gradient`` over all ranks, coalesced: every rank receives the rows of all.

    Blocks. Returns ``gradient`` itself if the generation is broken.
    """
    mine = gradient.coalesce()
    try:
        counts = [count for (count,) in communicator.all_gather_ints([len(mine.values())], Kind.GRADIENTS)]
    except GenerationBroken:
        return gradient
    most = max(counts)
    if communicator.world_size == 1 or not most:
        return mine
    indices = mine.indices().new_zeros(communicator.world_size, mine.sparse_dim(), most)
    values = mine.values().new_zeros(communicator.world_size, most, *mine.values().shape[1:])
    indices[communicator.rank, :, : len(mine.values())] = mine.indices()
    values[communicator.rank, : len(mine.values())] = mine.values()
    torch.futures.wait_all([communicator.sum_bucket(indices), communicator.sum_bucket(values)])
    if communicator.broken is not None:
        return gradient
    rows = list(enumerate(counts))
    return torch.sparse_coo_tensor(
        torch.cat([indices[rank, :, :count] for rank, count in rows], dim=1),
        torch.cat([values[rank, :count] for rank, count in rows]),
        mine.shape,
    ).coalesce()


def _work(tensors: list[torch.Tensor], sums: list[torch.futures.Future[torch.Tensor]]) -> Any:
    done: torch.futures.Future[Any] = torch.futures.Future(devices=list({t.device for t in tensors if t.is_cuda}))
    for each in sums:
        each.wait()  # on a device this orders the current stream, and the host continues
    done.set_result(tensors)
    return work_of(done)
