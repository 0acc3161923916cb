"""``torch.nn.SyncBatchNorm`` over the ranks of the generation in force, on any device.

torch's own layer communicates over the default process group, which elastrain does not create, and has no CPU
implementation. :func:`adopt` gives the layers of a model the forward of :class:`SyncBatchNorm`. It normalises by the
statistics of the whole global batch, as a batch norm on one device would, however the batch is cut over ranks.

Each layer has one all-reduce in forward and one in backward. They use the transport of the gradients, so all ranks must
run the same layers in the same order, as with torch's. After a failure the statistics are local and the generation is
broken, so the step is discarded; no error is raised in user code.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.torch_private import BatchNorm

_scope = threading.local()


def adopt(module: nn.Module) -> bool:
    """Make the ``nn.SyncBatchNorm`` layers of ``module`` communicate over elastrain. Returns whether it has any."""
    layers = [m for m in module.modules() if isinstance(m, nn.SyncBatchNorm | SyncBatchNorm)]
    for layer in layers:
        layer.__class__ = SyncBatchNorm
    return bool(layers)


@contextmanager
def over(communicator: Communicator | None, *, counts: bool) -> Iterator[None]:
    """Layers that run inside, on this thread, use ``communicator``. ``counts``: whether the samples have a weight."""
    _scope.communicator, _scope.counts = communicator, counts
    try:
        yield
    finally:
        _scope.communicator = None


class SyncBatchNorm(BatchNorm):
    """Local outside of the training loop, in the warm-up, and in ``eval()`` mode.

    Not a subclass of torch's: DDP refuses those on a CPU, and assigns its own process group to them.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        y, mean, var = _Normalise.apply(
            x, self.weight, self.bias, self.eps, getattr(_scope, "communicator", None), getattr(_scope, "counts", True)
        )
        if self.running_mean is not None:
            self._follow(mean, var)
        return y

    def _follow(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        with torch.no_grad():
            self.num_batches_tracked += 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), momentum)
            self.running_var.lerp_(var.to(self.running_var), momentum)


class _Normalise(torch.autograd.Function):
    """Batch norm over the samples of all ranks: the output, the mean, and the unbiased variance."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes positions
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        communicator: Communicator | None,
        counts: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
        values = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        axes = [d for d in range(x.dim()) if d != 1]
        count = values.numel() // values.shape[1]
        var, mean = torch.var_mean(values, axes, correction=0)
        mine = torch.cat([mean, var * count, mean.new_tensor([count])])
        table = _gather(mine if counts else torch.zeros_like(mine), communicator)
        if table is None:
            table = mine[None]
        means, squares = table[:, : len(mean)], table[:, len(mean) : -1]
        numbers = table[:, -1:]
        total = numbers.sum()  # stays on the device: a Python number would wait for it
        mean = (numbers * means).sum(0) / total
        square = (squares + numbers * (means - mean) ** 2).sum(0)
        scale = (square / total + eps).rsqrt()
        normal = (values - _channels(mean, x)) * _channels(scale, x)
        ctx.save_for_backward(normal, scale, weight)
        ctx.total, ctx.communicator, ctx.counts, ctx.has_bias = total, communicator, counts, bias is not None
        y = normal if weight is None else normal * _channels(weight, x)
        y = y if bias is None else y + _channels(bias, x)
        unbiased = square / (total - 1).clamp_min(1)
        ctx.mark_non_differentiable(mean, unbiased)
        return y.to(x.dtype), mean, unbiased

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normal, scale, weight = ctx.saved_tensors
        axes = [d for d in range(dy.dim()) if d != 1]
        grad = dy.to(normal.dtype)
        sums = torch.stack([grad.sum(axes), (grad * normal).sum(axes)])
        to_bias, to_weight = sums if weight is None else sums.to(weight.dtype)
        factor = scale if weight is None else scale * weight
        if ctx.counts:
            of_all = _sum(sums, ctx.communicator) / ctx.total
            grad = grad - _channels(of_all[0], dy) - normal * _channels(of_all[1], dy)
        else:
            _sum(torch.zeros_like(sums), ctx.communicator)  # a stand-in moves no statistics
        return (
            (grad * _channels(factor, dy)).to(dy.dtype),
            None if weight is None else to_weight,
            to_bias if ctx.has_bias else None,
            None,
            None,
            None,
        )


def _channels(per_channel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return per_channel.view(1, -1, *[1] * (like.dim() - 2))


def _gather(mine: torch.Tensor, communicator: Communicator | None) -> torch.Tensor | None:
    """``mine`` of all ranks, in rank order; None outside of a generation, or if it is broken."""
    if communicator is None or communicator.broken is not None:
        return None
    table = mine.new_zeros(communicator.world_size, len(mine))
    table[communicator.rank] = mine
    communicator.sum_bucket(table, Kind.NORM).wait()  # the other ranks add only zeros to a row
    return None if communicator.broken is not None else table


def _sum(mine: torch.Tensor, communicator: Communicator | None) -> torch.Tensor:
    """The sum of ``mine`` over all ranks; ``mine`` itself if the generation is broken."""
    if communicator is None or communicator.broken is not None:
        return mine
    total = mine.detach().clone()
    communicator.sum_bucket(total, Kind.NORM).wait()
    return mine if communicator.broken is not None else total
