"""The default strategy: one replica of the models per rank, gradients summed over the ranks while backward runs.

The sums go over the communicator of the generation in force, and the buckets
(:mod:`elastrain.elastic.strategies.buckets`) stay for the life of the process, and are cut alike on all ranks.

Where ranks may reach different parameters (several models or backwards in a loop body, ``find_unused_parameters``),
they agree on those that any of them has reached. Parameters that no rank has reached keep what they have: None, or the
gradient of a backward before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from elastrain.data.order import Order, Slice
from elastrain.elastic import torch_private
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.state import digest
from elastrain.elastic.strategies import batchnorm
from elastrain.elastic.strategies.buckets import Bucket, Buckets
from elastrain.elastic.strategies.learner import Learner
from elastrain.elastic.strategies.strategy import ElasticModule, Measure, Strategy, refuse_sharded
from elastrain.elastic.torch_private import pytree

_OPTIONS = ("bucket_cap_mb", "check_reduction", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
"""Options of DDP that have a meaning here, or that change no result."""

_UNUSED = (
    "job.backward(loss): the loss does not depend on all parameters of the wrapped model that train{}; if that is "
    "meant, use job.wrap(model, find_unused_parameters=True), or requires_grad_(False) for parameters that do not train"
)
_BESIDE = (
    "job.backward(loss): the model that job.wrap() returned has not computed it: model = job.wrap(net), then model(x) "
    "in the loop body; net(x) is for evaluations"
)
_NOTHING = "the loss given to job.backward() depends on no parameter of the models given to job.wrap()"


class Replicated(Strategy):
    """Gradients add up in place, and buckets of them are summed over the ranks, overlapping with the last backward."""

    def __init__(self, small: Measure | None = None) -> None:
        """``small``: with ``spec.batch``: what the steps measure of the gradients' noise."""
        self._small = small
        self._models: list[ReplicatedModule] = []
        self._whole: ReplicatedModule | None = None
        """All models as one."""
        self._synchronises_norms = False
        self._backwards = 0
        """Of the step, that have summed gradients."""

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
        refuse_sharded(module)
        self._synchronises_norms |= batchnorm.adopt(module)
        if self._synchronises_norms and self._small is not None:
            raise ValueError(
                "job.wrap(model): nn.SyncBatchNorm, whose ranks must communicate equally often: not with spec.batch; "
                "use GroupNorm, or plain BatchNorm, or remove spec.batch"
            )
        self._models.append(ReplicatedModule(module, self._small, **ddp_options))
        self._whole = self._models[-1]
        if len(self._models) > 1:
            self.several_backwards()
        return self._models[-1]

    def whole(self) -> ElasticModule:
        assert self._whole is not None
        return self._whole

    def several_backwards(self) -> ElasticModule:
        if self._small is not None:
            raise ValueError(
                "spec.batch: serves a job with one model and one job.backward() in each loop body: remove it, or sum "
                "the losses of one model"
            )
        for model in self._models:
            model.leave()
        self._whole = ReplicatedModule(nn.ModuleList(model.module for model in self._models), several=True)
        return self._whole

    def begin_step(self) -> None:
        self._backwards = 0
        self.whole().begin_step()

    def body(self, part: Slice, communicator: Communicator) -> AbstractContextManager[object]:
        # With these a part has one micro-batch.
        return batchnorm.over(communicator, counts=bool(part.indices)) if self._synchronises_norms else nullcontext()

    def backward(
        self,
        loss: torch.Tensor,
        unscaled: torch.Tensor,
        part: Slice,
        communicator: Communicator,
        *,
        last: bool,
        retain_graph: bool = False,
    ) -> None:
        """After a last one another may follow, with a loss of its own."""
        model = self.whole()
        weighted = loss * part.weight
        model.put_gradients_back()
        if last:
            model.begin_backward(communicator, renew=self._backwards > 0)
            self._backwards += 1
        weighted.backward(retain_graph=retain_graph)
        if last:
            model.end_backward(communicator)
        else:
            model.measure()
            model.put_gradients_aside()


class ReplicatedModule(ElasticModule):
    """A model of which each rank has a replica."""

    def __init__(
        self, module: nn.Module, small: Measure | None = None, *, several: bool = False, **ddp_options: Any
    ) -> None:
        """``several``: models or backwards in a loop body. Raises ``ValueError`` for options of DDP without a meaning
        here, and for sparse gradients of ``several``."""
        super().__init__(module)
        if lost := [option for option in ddp_options if option not in _OPTIONS]:
            raise ValueError(
                f"job.wrap({', '.join(lost)}=…): belongs to DDP, which elastrain does not use: leave it out"
            )
        self._finds_unused = bool(ddp_options.get("find_unused_parameters"))
        self._views = ddp_options.get("gradient_as_bucket_view", True)
        self._cap = int((ddp_options.get("bucket_cap_mb") or 0) * (1 << 20)) or None
        self._several, self._small = several, small
        sparse = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse]
        self._sparse = {m.weight: None for m in sparse if m.weight.requires_grad}
        if several and self._sparse:
            raise ValueError(
                "job.wrap(): embeddings with sparse=True need a single model, and a single job.backward() in a loop "
                "body; use sparse=False"
            )
        self.communicator: Communicator | None = None
        self.buckets: Buckets | None = None
        self._layout = 0
        self._aside: list[tuple[nn.Parameter, torch.Tensor]] = []
        """Gradients of the micro-batches so far, between the bodies of a step."""
        self._device: torch.device | None = None
        """Where forward moves its arguments, as in DDP: the CUDA device of all parameters; None: it does not."""
        self._called = False
        """Whether this wrapper has run a forward since the last sums."""
        communicates = any(isinstance(m, batchnorm.SyncBatchNorm) for m in module.modules())
        alike = not (communicates or self._finds_unused or several or self._sparse)
        self.learner = Learner(self.empty_buckets) if alike else None

    @property
    def layout(self) -> int:
        return 0 if self.buckets is None or self._trains_others else self._layout

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        self.detach()
        self.communicator, self.may_train_others = communicator, True
        if not keep:
            self._cut()

    def detach(self) -> None:
        self.communicator, self._aside = None, []
        if self.buckets is not None and not self._layout and self.buckets.arrived:
            self._check_used()
            self._cut(warmed=True)  # as ranks of the first generation, which have run no warm-up

    def recover(self) -> None:
        if self.buckets is not None:
            self.buckets.close()

    def leave(self) -> None:
        """From now on another module sums the gradients of this one's parameters."""
        if self.buckets is not None:
            self.buckets.remove()
        self.buckets, self.learner, self.communicator = None, None, None

    def begin_step(self) -> None:
        """A step begins, or begins again."""
        self._aside = []

    def drop_gradients(self) -> None:
        self._aside = []
        super().drop_gradients()

    def measure(self) -> None:
        """The gradients are those of this rank's first micro-batch, if none was measured before."""
        if self._small is not None and self._small.open:
            self._small.add([p.grad for p in self.module.parameters() if p.grad is not None])
            self._small.close()

    def put_gradients_aside(self) -> None:
        """Keep the gradients of a step that is not complete out of the script's reach."""
        self._aside = [(p, p.grad) for p in self.module.parameters() if p.grad is not None]
        for parameter, _ in self._aside:
            parameter.grad = None

    def put_gradients_back(self) -> None:
        """The next backward adds to the gradients that were put aside."""
        for parameter, gradient in self._aside:
            parameter.grad = gradient
        self._aside = []

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output. Raises ``RuntimeError`` if this wrapper, and not the model, is compiled."""
        if not torch.is_grad_enabled() or not (self.training or self.in_body()):
            return self.module(*args, **kwargs)
        if torch_private.compiles():
            raise RuntimeError(
                "torch.compile(job.wrap(net)): the compiler cannot trace a change of generation; compile the model "
                "itself, at any time: job.wrap(torch.compile(net)), or model.compile()"
            )
        if self.learner is not None and self.learner.outputs.replaying:
            return self.learner.outputs.replay()
        if self.buckets is None:
            self._cut()
        if self._device is not None:
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(self._device), (args, kwargs))
        output, self._called = self.module(*args, **kwargs), True
        return self.learner.outputs.record(output) if self.learner is not None and self.warms_up else output

    # -- sums --------------------------------------------------------------------------------------------------------
    def begin_backward(self, communicator: Communicator | None = None, *, renew: bool = False) -> None:
        """The next backward sums gradients over ``communicator``; None: over the one of :meth:`attach`.

        ``renew``: gradients of an earlier backward of the step stay.
        """
        self.communicator = communicator or self.communicator
        if self.buckets is None or (self.may_train_others and self._trains_others):
            self._cut()
        self.may_train_others = False
        assert self.buckets is not None
        self.buckets.open(overlaps=not self._several, renew=renew)

    def end_backward(self, communicator: Communicator) -> None:
        """The gradients become those of all ranks: returns when no sum of the host is under way.

        Raises ``RuntimeError`` if the backward has not reached the gradients that it must.
        """
        buckets, called = self.buckets, self._called
        assert buckets is not None
        self._called = False
        if self._several:
            self._sum_reached(communicator, buckets)
        elif not called:
            raise RuntimeError(_BESIDE)
        elif self._finds_unused:
            self._sum_all(communicator, buckets)
        elif self._sparse or not buckets.full:
            self._check_used()
        buckets.wait()
        for p in self._sparse:
            p.grad = sum_sparse(communicator, torch.zeros_like(p).to_sparse(1) if p.grad is None else p.grad)
        if not self._views:
            for p in self.module.parameters():
                p.grad = None if p.grad is None else p.grad.clone()

    def _sum_reached(self, communicator: Communicator, buckets: Buckets) -> None:
        """Sum the buckets with gradients that any rank has computed, after the backward."""
        buckets.fill()
        reached = self._reached(communicator, buckets)
        if not any(reached):
            raise RuntimeError(_NOTHING)
        buckets.sum_rest(lambda bucket: any(reached[i] for i in bucket.numbers))
        self._take(buckets, reached)

    def _sum_all(self, communicator: Communicator, buckets: Buckets) -> None:
        """Sum the buckets that have waited for gradients which this rank has not computed."""
        buckets.fill()
        buckets.sum_rest()
        self._take(buckets, self._reached(communicator, buckets))

    def _reached(self, communicator: Communicator, buckets: Buckets) -> list[float]:
        """By parameter: the number of ranks that have computed a gradient of it."""
        mine = torch.tensor([float(i in buckets.arrived) for i in range(len(buckets.parameters))])
        communicator.sum_together(mine, kind=Kind.CONTROL)[0].wait()
        reached: list[float] = mine.tolist()
        return reached

    def _take(self, buckets: Buckets, reached: Sequence[float]) -> None:
        for bucket in buckets.buckets:
            for number, parameter, view in zip(bucket.numbers, bucket.parameters, bucket.views, strict=True):
                if reached[number] and number not in buckets.arrived:
                    parameter.grad = view

    def empty_buckets(self) -> list[Bucket]:
        """The buckets, filled with zeros, for a step of a learner."""
        assert self.buckets is not None
        self.buckets.close()
        for bucket in self.buckets.buckets:
            bucket.flat.zero_()
        return self.buckets.buckets

    def _begin(self, flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if self.communicator is None:
            return completed(flat)
        if self._small is not None and self._small.open:
            self._small.add([flat])
        return self.communicator.sum_bucket(flat)

    @property
    def _trains_others(self) -> bool:
        """Whether other parameters require gradients than those with a place in a bucket.

        A model without any is switched off for a moment, as in a GAN; of several models some always are.
        """
        assert self.buckets is not None
        flags, places = [p.requires_grad for p in self.buckets.parameters], self.buckets.flags
        if self._several:
            return any(trains and not has for trains, has in zip(flags, places, strict=True))
        return flags != places and True in flags

    def _cut(self, *, warmed: bool = False) -> None:
        """Cut the buckets for the parameters that train now; all ranks do so in the same step, or ``warmed``: before
        their first one."""
        if self.buckets is not None:
            self.buckets.remove()
        devices = {p.device for p in self.module.parameters()}
        self._device = devices.pop() if len(devices) == 1 and next(iter(devices)).type == "cuda" else None
        parameters = [p for p in self.module.parameters() if p not in self._sparse]
        self.buckets = Buckets(parameters, self._begin, self._cap)
        cut = [bucket.numbers for bucket in self.buckets.buckets]
        self._layout = digest.of_value(cut) if warmed or self.communicator is not None else 0

    def _check_used(self) -> None:
        """Raises ``RuntimeError`` naming the parameters that the newest backward has not reached."""
        buckets = self.buckets
        assert buckets is not None
        numbers = {id(p): i for i, p in enumerate(buckets.parameters)}
        unused = [
            name
            for name, p in self.module.named_parameters()
            if p.requires_grad and (p.grad is None if p in self._sparse else numbers[id(p)] not in buckets.arrived)
        ]
        if unused and not self._finds_unused and not self._several:
            raise RuntimeError(_UNUSED.format(f" ({', '.join(unused)})"))


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
