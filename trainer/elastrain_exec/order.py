"""The script's own order of samples, cut by the job."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

OPTIONS = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


class Order:
    """The samples of the N processes of a ``DistributedSampler``: batch by batch, and in it process by process.

    With N ranks each rank then has the samples of its process; with another number a batch still has the same ones.
    """

    def __init__(self, sampler: Any, batch_size: int, shard: Any) -> None:
        """``shard(sampler)``: torch's own iteration, of one process."""
        self._sampler, self._batch, self._shard = sampler, batch_size, shard
        self.epochs: dict[int, int] = {}
        """By epoch of the job: what the script had given to ``set_epoch`` when it began."""
        self._kept: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        return int(self._sampler.total_size)

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """As of :class:`elastrain.data.Sampler`."""
        of_script = self.epochs.get(epoch, self._sampler.epoch)
        if self._kept is None or self._kept[0] != of_script:
            self._kept = of_script, self._whole(of_script)
        return self._kept[1][start:stop]

    def _whole(self, epoch: int) -> list[int]:
        found: list[int] = []
        shards = [*shards_of(self._sampler, epoch, self._shard)]
        for first in range(0, len(shards[0]), self._batch):
            for shard in shards:
                found += shard[first : first + self._batch]
        return found


def shards_of(sampler: Any, epoch: int, shard: Any) -> Iterator[list[int]]:
    """The samples of each of the processes."""
    for rank in range(sampler.num_replicas):
        one = copy.copy(sampler)
        one.rank, one.epoch = rank, epoch
        yield list(shard(one))
