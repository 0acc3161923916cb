"""How the gradients of a step's micro-batches on all ranks become those of the mean over the global batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from elastrain.data.order import Order, Slice
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.control_vector import Words
from elastrain.elastic.membership.control import Summed
from elastrain.elastic.strategies import batchnorm
from elastrain.elastic.strategies.replicated import ElasticModule


class Gradients(Protocol):
    """One of the two ways, ``Averaged`` and :class:`elastrain.elastic.strategies.bitwise.Bitwise`. Training
    thread only."""

    def check(self, order: Order) -> None:
        """Raises ``ValueError`` naming the argument if data cut like this cannot be trained on in this way.

        Asked for a new loader, and again when the loop begins: then the model is known.
        """

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        """The model in this way's wrapper. Raises ``ValueError``."""

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        """Raises ``RuntimeError`` if a model whose forward changes these buffers cannot be trained in this way."""

    def begin(self, leaves: tuple[int, int, int] | None) -> None:
        """A step begins, or begins again. ``leaves``: of this rank, as of :meth:`Order.leaves`, where there are any."""

    def body(self, part: Slice, communicator: Communicator, *, last: bool) -> AbstractContextManager[object]:
        """Around the loop body on a micro-batch, the ``last`` one of this rank's or not."""

    def backward(
        self,
        loss: torch.Tensor,
        part: Slice,
        connected: Callable[[], Collection[int]],
        compute: float,
        communicator: Communicator,
        *,
        stop: bool = False,
        last: bool,
    ) -> Summed | None:
        """Compute the gradients of one micro-batch; with the last one, communicate.

        ``connected`` tells the proposals that this rank could switch to, when it is asked. Returns None before the last
        one, and then what all ranks have said, which means nothing if the communicator broke meanwhile.
        """


class Averaged:
    """The default: gradients add up in place, and DDP sums them over the ranks, overlapping, with the last backward."""

    def __init__(self) -> None:
        self._model: ElasticModule | None = None
        self._synchronises_norms = False
        self._loss: torch.Tensor | None = None

    def check(self, order: Order) -> None:
        if order.micro_batches is not None:
            raise ValueError(
                "job.dataloader(micro_batches=…): belongs to elastrain.join(numerics='bitwise'); "
                "to save memory give micro_batch_size=…"
            )
        if order.micro_batch_size is not None and self._synchronises_norms:
            raise ValueError(
                "job.dataloader(micro_batch_size=…): not with nn.SyncBatchNorm, whose ranks must communicate equally "
                "often; use GroupNorm, or plain BatchNorm"
            )

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        self._synchronises_norms = batchnorm.adopt(module)
        self._model = ElasticModule(module, **ddp_options)
        return self._model

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        """Buffers may change: each rank has its own."""

    def begin(self, leaves: tuple[int, int, int] | None) -> None:
        self._loss = None

    def body(self, part: Slice, communicator: Communicator, *, last: bool) -> AbstractContextManager[object]:
        assert self._model is not None
        if self._synchronises_norms:  # there is one micro-batch only
            return batchnorm.over(communicator, counts=bool(part.indices))
        return nullcontext() if last else self._model.no_sync()

    def backward(
        self,
        loss: torch.Tensor,
        part: Slice,
        connected: Callable[[], Collection[int]],
        compute: float,
        communicator: Communicator,
        *,
        stop: bool = False,
        last: bool,
    ) -> Summed | None:
        assert self._model is not None
        weighted = loss * part.weight
        self._loss = weighted.detach() if self._loss is None else self._loss + weighted.detach()
        if not last:
            weighted.backward()
            return None
        self._model.prepare(Words(connected, self._loss, compute, stop=stop))
        weighted.backward()
        return self._model.heard(communicator)
