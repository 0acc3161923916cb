"""The cursor of a loader: it cuts each step into micro-batches once, for the worker processes and for the loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from elastrain.data.fetch import Task
from elastrain.data.order import Order, Slice
from elastrain.data.share import Share
from elastrain.data.spans import ONE, Spans


class Cursor:
    """Loading tasks from a position on, up to the end of its epoch: what the script changes there acts in the next one.

    :meth:`begin` moves the position if it is not the expected one.
    """

    def __init__(self, order: Order, newest: torch.Tensor) -> None:
        """``newest``: int64 of shape (1,), shared with the worker processes: the ticket of tasks that are needed."""
        self.ticket = 0
        self.order, self._newest = order, newest
        self._first, self._share, self._spans = 0, Share(0, 1), ONE
        """Step and share that tasks of the present ticket began with."""
        self._expected: tuple[int, Share, Spans] | None = None
        self._cuts: dict[int, tuple[Slice, ...]] = {}
        """By step: those that were drawn for loading, and the one under way."""
        self._left = 0
        """Micro-batches of the step under way that have not been taken."""

    def begin(self, step: int, share: Share, spans: Spans = ONE) -> tuple[Slice, ...]:
        """The micro-batches of ``share`` in ``step``; :meth:`take` counts those that are loaded.

        Tasks for another position become stale: their batches are dropped.
        """
        if self._left or (step, share, spans) != self._expected:
            self.ticket += 1
            self._newest[0] = self.ticket
            self._first, self._share, self._spans, self._cuts = step, share, spans, {}
        self._cuts = {s: cut for s, cut in self._cuts.items() if s >= step}
        cut = self._cut(step)
        self._expected, self._left = (step + self._span(step), share, spans), len(cut)
        return cut

    def forget(self) -> None:
        """Tasks that were drawn are stale, also for the position that is expected."""
        self._expected, self._newest[0] = None, -1

    def take(self) -> None:
        """The next micro-batch of the step under way is loaded."""
        self._left -= 1

    def __iter__(self) -> Iterator[Task]:
        while True:
            ticket, step = self.ticket, self._first
            epoch, _ = self.order.where(step)
            while ticket == self.ticket and self.order.where(step)[0] == epoch:
                position = step * self.order.global_batch_size
                for cut in self._cut(step):
                    yield Task(ticket, cut.epoch, cut.fetch, position + cut.start)
                    if ticket != self.ticket:
                        break
                step += self._span(step)
            if ticket == self.ticket:
                return

    def _span(self, step: int) -> int:
        return self._spans.at(step, self.order.left(step))

    def _cut(self, step: int) -> tuple[Slice, ...]:
        if step not in self._cuts:
            self._cuts[step] = self.order.micro_slices(
                step, *self._share, span=self._span(step), limit=self._spans.limit
            )
        return self._cuts[step]
