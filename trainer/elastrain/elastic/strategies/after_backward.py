"""Sums of gradients after each backward: for several models, or several backwards in a loop body.

DDP's reducer serves one forward, one backward and one set of parameters in each step. Here a backward computes local
gradients first. Then the ranks agree on the parameters that it has reached on any of them. They sum those gradients
in flat buckets, in the order of the parameters. Parameters that no rank has reached keep what they have: None, or the
gradient of a backward before. Nothing overlaps with backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from elastrain.data.order import Slice
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.strategies.strategy import ElasticModule

BUCKET_BYTES = 25 << 20
"""Gradients that are summed at once: the next bucket is copied together meanwhile."""
Gradients = dict[nn.Parameter, torch.Tensor]


class AfterBackward:
    """Computes the gradients of all wrapped models together, for :class:`Replicated`."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        """Raises ``ValueError`` for models with sparse gradients, of which buckets have no memory."""
        self.model = ElasticModule(nn.ModuleList(modules))
        """All models as one."""
        if any(isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse for m in self.model.modules()):
            raise ValueError(
                "job.wrap(): embeddings with sparse=True need a single model, and a single job.backward() in a loop "
                "body; use sparse=False"
            )
        self._parameters = list(self.model.parameters())
        self._local: Gradients = {}
        """Of the micro-batches so far, between the bodies of a step."""

    def follow(self) -> None:
        """A loop begins: take the parameters that the models have now."""
        self._parameters = list(self.model.parameters())

    def begin_step(self) -> None:
        """As of :meth:`Strategy.begin_step`."""
        self._local = {}

    def backward(
        self,
        loss: torch.Tensor,
        part: Slice,
        communicator: Communicator,
        *,
        last: bool,
        retain_graph: bool,
    ) -> None:
        """As of :meth:`Strategy.backward`; after a last one another may follow, with a loss of its own.

        Raises ``RuntimeError`` if the loss depends on no parameter of the models.
        """
        _put(self._local)
        (loss * part.weight).backward(retain_graph=retain_graph)
        self._local = {}
        if last:
            self._sum(communicator)
        else:
            self._local = self._take()

    def _take(self) -> Gradients:
        """The gradients of all parameters, which have none afterwards."""
        taken = {p: p.grad for p in self._parameters if p.grad is not None}
        for parameter in taken:
            parameter.grad = None
        return taken

    def _sum(self, communicator: Communicator) -> None:
        """Make the gradients those of all ranks. They are void if the generation broke."""
        reached = torch.tensor([float(p.grad is not None) for p in self._parameters])
        communicator.sum_together(reached, kind=Kind.CONTROL)[0].wait()
        parameters = [p for p, ranks in zip(self._parameters, reached.tolist(), strict=True) if ranks]
        if not parameters:
            raise RuntimeError(
                "the loss given to job.backward() depends on no parameter of the models given to job.wrap()"
            )
        sums = []
        for bucket in _buckets(parameters):
            flat = torch.cat([_gradient(p).reshape(-1) for p in bucket])
            sums.append(communicator.sum_bucket(flat))
            for parameter, total in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = total.view(parameter.shape)
        torch.futures.wait_all(sums)


def _put(gradients: Gradients) -> None:
    for parameter, gradient in gradients.items():
        parameter.grad = gradient


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of one device and type, of up to :data:`BUCKET_BYTES`; the same on all ranks."""
    kinds: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for alike in kinds.values():
        bucket: list[nn.Parameter] = []
        for parameter in alike:
            if bucket and sum(p.nbytes for p in bucket) + parameter.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(parameter)
        yield bucket
