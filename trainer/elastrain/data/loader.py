"""Batches of this rank's part of each step, with optional worker processes that outlive a rescale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from elastrain.data.fetch import Fetcher, Task, WorkerStart, as_it_is
from elastrain.data.order import Order, Slice
from elastrain.data.rng import Randomness


class ElasticLoader:
    """Made by :meth:`elastrain.Job.dataloader`; given to :meth:`elastrain.Job.steps`.

    A cursor, not a replay: after a rescale, or for a step that has to be done again, loading continues at exactly that
    step's part for the new world. Worker processes stay. What they had prefetched for the old world is dropped; of what
    they still were to load for it they finish at most the one sample (with ``__getitems__``, batch) that each is at.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        *,
        keyed: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        **loader_options: Any,
    ) -> None:
        """``keyed``: random numbers by position (:mod:`elastrain.data.rng`). ``loader_options``: ``pin_memory``,
        ``prefetch_factor``, ``timeout``, ``multiprocessing_context`` of torch's ``DataLoader``.
        """
        self.order = order
        self.randomness = Randomness(order) if keyed else None
        newest = torch.zeros(1, dtype=torch.int64)
        if num_workers:
            newest.share_memory_()
        self._cursor = _Cursor(order, newest)
        self._loader = DataLoader(
            Fetcher(dataset, collate_fn or default_collate, self.randomness, newest),
            sampler=self._cursor,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=as_it_is,
            worker_init_fn=WorkerStart(worker_init_fn),
            # Where samples have keys, the workers' base seed is not drawn from the user's stream.
            generator=torch.Generator() if keyed else None,
            **loader_options,
        )
        self._batches: Iterator[tuple[int, Any]] | None = None
        self._next: tuple[int, int, int, int] | None = None

    def fetch(self, step: int, rank: int, world_size: int, micro: int = 0) -> tuple[Any, Slice]:
        """The collated micro-batch ``micro`` of ``rank`` for ``step`` (both from 0), and what it consists of.

        Raises what the data set raises, and ``RuntimeError`` (torch's words) if a worker process has died.
        """
        if self._next != (step, rank, world_size, micro):
            self._cursor.seek(step, rank, world_size, micro)
        if self._batches is None:
            self._batches = iter(self._loader)
        ticket, batch = next(self._batches)
        while ticket != self._cursor.ticket:
            ticket, batch = next(self._batches)
        parts = self.order.micro_slices(step, rank, world_size)
        self._next = following(step, rank, world_size, micro, len(parts))
        return batch, parts[micro]


def following(step: int, rank: int, world_size: int, micro: int, count: int) -> tuple[int, int, int, int]:
    """The place of the micro-batch after ``micro`` of ``count``."""
    return (step, rank, world_size, micro + 1) if micro + 1 < count else (step + 1, rank, world_size, 0)


class _Cursor:
    """Endless tasks from a position on, which may be moved while they are drawn."""

    def __init__(self, order: Order, newest: torch.Tensor) -> None:
        self.ticket = 0
        self._order = order
        self._newest = newest
        self._at = (0, 0, 1, 0)

    def seek(self, step: int, rank: int, world_size: int, micro: int) -> None:
        self.ticket += 1
        self._newest[0] = self.ticket
        self._at = (step, rank, world_size, micro)

    def __iter__(self) -> Iterator[Task]:
        while True:
            step, rank, world_size, micro = self._at
            parts = self._order.micro_slices(step, rank, world_size)
            self._at = following(*self._at, len(parts))
            position = step * self._order.global_batch_size + parts[micro].start
            yield Task(self.ticket, parts[micro].epoch, parts[micro].fetch, position)
