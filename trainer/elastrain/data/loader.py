"""Loads this rank's part of each step, with optional worker processes that outlive a rescale, but no epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, default_collate

from elastrain.data.cursor import Cursor
from elastrain.data.fetch import Fetcher, WorkerStart, as_it_is
from elastrain.data.order import Order, Slice
from elastrain.data.rng import Randomness
from elastrain.data.share import Share
from elastrain.data.spans import ONE, Spans
from elastrain.data.stream import ElasticIterable

_EACH_EPOCH = "leave set_epoch() out: each epoch has an order of its own, by seed and epoch"
_INSTEAD = {
    "set_epoch": _EACH_EPOCH,
    "sampler": _EACH_EPOCH + "; a sampler of your own is an argument of job.dataloader()",
    "batch_sampler": "a batch sampler is an argument of job.dataloader()",
    "batch_size": "the batch of a rank changes with their number; the global batch has order.global_batch_size samples",
}
"""What to do instead of using these attributes of torch's ``DataLoader``."""


_ENDED = (None, None)


class ElasticLoader:
    """Made by :meth:`elastrain.Job.dataloader`; given to :meth:`elastrain.Job.steps`.

    A cursor, not a replay: after a rescale, and for a step that is repeated, loading continues at exactly that step's
    part for the new world. Worker processes stay. The batches that they prefetched for the old world are dropped. Of
    the samples still to be loaded for it, each worker finishes at most the one that it is at (with ``__getitems__``,
    the batch).

    With each loop and epoch, data set and sampler are read as the script has them then, on all ranks: nothing of it is
    drawn or loaded before, and its worker processes are forked as it begins.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order | Callable[..., Order],
        *,
        keyed: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        **loader_options: Any,
    ) -> None:
        """``order(epoch=n)``: as data set and sampler are now. ``keyed``: random numbers by position
        (:mod:`elastrain.data.rng`). ``loader_options``: ``pin_memory``, ``prefetch_factor``, ``timeout``,
        ``multiprocessing_context`` of torch's ``DataLoader``.
        """
        self._read: Callable[..., Order] = (lambda epoch=None: order) if isinstance(order, Order) else order
        self.dataset, self.order, self.collate_fn = dataset, self._read(), collate_fn or default_collate
        self.randomness = Randomness(self.order) if keyed else None
        self._epoch = 0
        newest = torch.zeros(1, dtype=torch.int64)
        if num_workers:
            newest.share_memory_()
        self._cursor = Cursor(self.order, newest)
        self.torch_loader = DataLoader(
            Fetcher(dataset, self.collate_fn, self.randomness, newest),
            sampler=self._cursor,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=as_it_is,
            worker_init_fn=WorkerStart(worker_init_fn),
            # With keyed samples, the base seed of the workers is not drawn from the user's stream.
            generator=torch.Generator() if keyed else None,
            **loader_options,
        )
        self._batches: Iterator[tuple[int, Any]] | None = None

    def __iter__(self) -> NoReturn:
        """Raises ``TypeError``: which part of a batch is this rank's is known in a step only."""
        raise TypeError(
            "a loader of job.dataloader() has no batches outside of a step: for batch in job.steps(loader, epochs=…), "
            "and job.evaluate(loader, fn) for sums over all of them"
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Raises ``AttributeError``, with the way out for what scripts for a fixed number of ranks look for."""
        known = _INSTEAD.get(name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}" + (f": {known}" if known else "")
        )

    def __len__(self) -> int:
        """Steps of an epoch. Raises ``TypeError`` for an endless stream."""
        if self.order.length is None:
            raise TypeError("an endless stream has no length")
        return self.order.steps_per_epoch

    def begin_loop(self, step: int, behind: Callable[[Order], Order]) -> Order:
        """A loop begins behind ``step`` committed steps, and behind the loops before, in the order that it returns."""
        before, self._epoch = self._epoch, max(0, self.order.where(step)[0])
        order = behind(self._read(epoch=self._epoch))
        # A stream is a function of the position; to reach that anew may take long.
        if self._epoch != before or order != self.order or not isinstance(self.dataset, ElasticIterable):
            self._begin_epoch(order)
        return self.order

    def begin(self, step: int, share: Share, spans: Spans = ONE) -> tuple[Slice, ...]:
        """The micro-batches of ``share`` in ``step`` (from 0); :meth:`load` then loads them one by one.

        The first step of an epoch reads the sampler. Raises its errors, and ``ValueError`` for another length.
        """
        epoch, _ = self.order.where(step)
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin_epoch(self._same_length(self._read(epoch=epoch)))
        return self._cursor.begin(step, share, spans)

    def load(self) -> Any:
        """The collated samples of the next micro-batch of the step that was begun.

        Raises the errors of the data set, and torch's ``RuntimeError`` if a worker process has died.
        """
        while True:
            if self._batches is None:
                self._batches = iter(self.torch_loader)
            ticket, data = next(self._batches, _ENDED)
            if ticket == self._cursor.ticket:
                self._cursor.take()
                return data
            if ticket is None:  # all tasks of the epoch were drawn before the position has moved
                self._batches = None

    def renew(self) -> None:
        """Drop what was prefetched: worker processes are forked anew, with the data set as it is now."""
        self._cursor.forget()
        self._batches = None

    def _begin_epoch(self, order: Order) -> None:
        self.renew()
        self.order = self._cursor.order = order
        if self.randomness is not None:
            self.randomness.order = order

    def _same_length(self, order: Order) -> Order:
        """``order``, for an epoch within a loop."""
        mine = self.order
        lengths = order.batch_sampler is not None or order.length == mine.length
        if order.steps_per_epoch != mine.steps_per_epoch or not lengths:
            raise ValueError(
                f"job.dataloader(): the length of the data is {order.length} samples in epoch {self._epoch} and "
                f"{mine.length} in the epochs before, {order.steps_per_epoch} and {mine.steps_per_epoch} steps: it "
                "must be the same in all epochs of a loop: begin a loop of its own, job.steps(loader, epochs=…), "
                "where the data change their length"
            )
        return replace(mine, sampler=order.sampler, batch_sampler=order.batch_sampler)
