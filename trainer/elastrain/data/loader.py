"""Batches of this rank's part of each step, with optional worker processes that outlive a rescale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from elastrain.data.order import Order, Slice


class ElasticLoader:
    """Made by :meth:`elastrain.Job.dataloader`; given to :meth:`elastrain.Job.steps`.

    A cursor, not a replay: after a rescale, or for a step that has to be done again, loading continues at exactly that
    step's part for the new world. Worker processes stay; only batches that they had prefetched for the old world are
    dropped.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        order: Order,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.order = order
        self._parts = _Cursor(order)
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._parts,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
        )
        self._batches: Iterator[Any] | None = None
        self._next: tuple[int, int, int] | None = None

    def fetch(self, step: int, rank: int, world_size: int) -> tuple[Any, Slice]:
        """The collated batch of ``rank`` for ``step`` (from 0), and what it consists of."""
        if self._batches is None or self._next != (step, rank, world_size):
            self._parts.seek(step, rank, world_size)
            self._batches = iter(self._loader)
        batch = next(self._batches)
        self._next = (step + 1, rank, world_size)
        return batch, self.order.slice(step, rank, world_size)


class _Cursor:
    """Endless index lists from a position on."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._at = (0, 0, 1)

    def seek(self, step: int, rank: int, world_size: int) -> None:
        self._at = (step, rank, world_size)

    def __iter__(self) -> Iterator[list[int]]:
        step, rank, world_size = self._at
        while True:
            yield list(self._order.slice(step, rank, world_size).fetch)
            step += 1
