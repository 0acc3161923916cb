"""The gradients of whole models in flat buckets, each summed over the ranks as soon as backward has filled it.

A gradient is a view of its bucket: the optimizer reads the sums where they arrive. Buckets are cut in the reverse order
of the parameters, in which most gradients come, as DDP's first ones; their sums begin in that order on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from elastrain.elastic.encoding.leaves import is_dense

FIRST_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Of the first bucket, whose sum begins early, and of the others; the defaults of DDP."""


Begin = Callable[[torch.Tensor], torch.futures.Future[torch.Tensor]]
"""Begins the sum of a bucket's memory over the ranks, in place."""


class Bucket:
    """Gradients of one type on one device, one after the other."""

    def __init__(self, parameters: Sequence[nn.Parameter], numbers: Sequence[int]) -> None:
        """``numbers``: of the parameters, among all."""
        self.parameters, self.numbers = parameters, numbers
        self.missing = 0
        """Gradients that the backward under way has not computed."""
        self.renew()

    def renew(self) -> None:
        """Take other memory: gradients of an earlier backward stay where they are."""
        first, sizes = self.parameters[0], [p.numel() for p in self.parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [_shaped(part, p) for part, p in zip(self.flat.split(sizes), self.parameters, strict=True)]


class Buckets:
    """The buckets of a model's parameters. For the training thread and autograd's threads.

    A backward whose gradients are summed: :meth:`open`, the backward, :meth:`complete`, :meth:`wait`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], begin: Begin, cap: int | None = None) -> None:
        """All that require gradients now have a place. ``cap``: bytes of a bucket; default: :data:`BUCKET_BYTES`."""
        self.parameters, self._begin = parameters, begin
        self.flags = [p.requires_grad for p in parameters]
        """By parameter: whether it has a place."""
        self.arrived: dict[int, None] = {}
        """Numbers of the parameters whose gradients the newest backward has computed, in the order in which they came;
        before the first :meth:`open` those of all backwards."""
        numbers = [i for i, trains in reversed([*enumerate(self.flags)]) if trains]
        self.buckets = [
            Bucket([parameters[i] for i in run], run) for run in _runs(parameters, numbers, cap or BUCKET_BYTES)
        ]
        self._places = {i: (bucket, at) for bucket in self.buckets for at, i in enumerate(bucket.numbers)}
        self._hooks = [parameters[i].register_post_accumulate_grad_hook(self._hook(i)) for i in numbers]
        self._open, self._overlaps, self._next = False, False, 0
        self._sums: list[torch.futures.Future[torch.Tensor]] = []

    def remove(self) -> None:
        """Other buckets replace these."""
        for hook in self._hooks:
            hook.remove()

    def open(self, *, overlaps: bool, renew: bool = False) -> None:
        """A backward follows whose gradients are summed. ``overlaps``: each bucket as soon as it and all before it are
        full. ``renew``: gradients of an earlier backward stay."""
        self.close()
        self._open, self._overlaps, self.arrived = True, overlaps, {}
        for bucket in self.buckets:
            bucket.missing = len(bucket.numbers)
            if renew:
                bucket.renew()

    def close(self) -> None:
        """No backward is under way, or an exception has ended it."""
        self._open, self._next, self._sums = False, 0, []

    @property
    def full(self) -> bool:
        """Whether the backward since :meth:`open` has computed all gradients that have a place."""
        return not any(bucket.missing for bucket in self.buckets)

    def fill(self) -> None:
        """Gradients that the backward has not computed are those of earlier micro-batches, which count as computed, or
        zero."""
        for number, (bucket, at) in self._places.items():
            if number in self.arrived:
                continue
            if bucket.parameters[at].grad is None:
                bucket.views[at].zero_()
            else:
                self._take(number)
                self.arrived[number] = None

    def sum_rest(self, chosen: Callable[[Bucket], bool] = lambda _: True) -> None:
        """Begin the sums of the ``chosen`` buckets that have not begun."""
        rest = [bucket for bucket in self.buckets[self._next :] if chosen(bucket)]
        self._sums += [self._begin(bucket.flat) for bucket in rest]
        self._next = len(self.buckets)

    def wait(self) -> None:
        """Return when the sums have arrived; on a device, when the current stream waits for them."""
        torch.futures.wait_all(self._sums)
        self.close()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def computed(_: torch.Tensor) -> None:
            if self._open:
                self._computed(number)
            else:
                self.arrived.setdefault(number)

        return computed

    def _computed(self, number: int) -> None:
        bucket = self._take(number)
        if number in self.arrived:
            return  # a layer that is computed again has a backward of its own (checkpoints)
        self.arrived[number] = None
        bucket.missing -= 1
        while self._overlaps and self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._next += 1
            self._sums.append(self._begin(self.buckets[self._next - 1].flat))

    def _take(self, number: int) -> Bucket:
        """The gradient of a parameter becomes a view of its bucket."""
        bucket, at = self._places[number]
        parameter, view = bucket.parameters[at], bucket.views[at]
        if parameter.grad is not view:
            view.copy_(parameter.grad.detach())
            parameter.grad = view
        return bucket


def _runs(parameters: Sequence[nn.Parameter], order: Sequence[int], cap: int) -> Iterator[list[int]]:
    """``order`` in runs of one device and type, of up to :data:`FIRST_BYTES` and then ``cap`` bytes."""
    runs: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    limit = min(FIRST_BYTES, cap)
    for i in order:
        kind = (parameters[i].device, parameters[i].dtype)
        run = runs.setdefault(kind, [])
        run.append(i)
        if sum(parameters[j].nbytes for j in run) >= limit:
            yield runs.pop(kind)
            limit = cap
    yield from runs.values()


def _shaped(part: torch.Tensor, like: nn.Parameter) -> torch.Tensor:
    """``part`` in the shape of ``like``, and in its order in memory if that has no gaps."""
    if is_dense(like):
        return part.as_strided(like.size(), like.stride(), part.storage_offset())
    return part.view(like.shape)
