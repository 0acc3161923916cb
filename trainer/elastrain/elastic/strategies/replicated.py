"""The default strategy: one replica per rank, gradients averaged by DDP.

A job with several models, or with several backwards in a loop body, leaves DDP
(:mod:`elastrain.elastic.strategies.after_backward`).

DDP's bucketing and its overlap with backward are used as they are. A communication hook sums the buckets over the
communicator of the generation. One DDP lasts for the life of the process:
it is made before the rank has any peer, and the generations' communicators are exchanged beneath it. Wrapping anew at
each switch would cost each time as much as a first step (buckets are allocated, then rebuilt in the order in which
gradients come).

Gradients are views of the buckets (``gradient_as_bucket_view``) unless the script sets the option: copying the sums out
of the buckets would cost a pass over all gradients in each step, and their memory a second time.

DDP is kept only if all ranks have cut their gradients into the same buckets, which they compare on entry of a
generation. Every rank wraps anew if the buckets differ, if an option of DDP needs collectives of its own, or if the
gradient of a layer is sparse (its bucket has no memory beforehand, and so cannot be listed).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastrain.data.order import Order, Slice
from elastrain.elastic import torch_private, torch_probes
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.group import DdpGroup, sum_sparse
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.state import digest
from elastrain.elastic.strategies import batchnorm
from elastrain.elastic.strategies.after_backward import AfterBackward
from elastrain.elastic.strategies.learner import Learner
from elastrain.elastic.strategies.strategy import ElasticModule, Measure
from elastrain.elastic.strategies.unsupported import refuse_sharded

_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"
"""DDP's option has a new name in torch 2.13."""
_OF_SPEED = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
"""DDP options that change no result, and so may be given where DDP is not used."""
_OWN_COLLECTIVES = ("find_unused_parameters", "static_graph")
"""DDP options under which DDP communicates by itself, beside the hook."""

_UNUSED = (
    "job.backward(loss): the loss does not depend on all parameters of the wrapped model that train{}; if that is "
    "meant, use job.wrap(model, find_unused_parameters=True), or requires_grad_(False) for parameters that do not train"
)
_BESIDE = (
    "job.backward(loss): the model that job.wrap() returned has not computed it: model = job.wrap(net), then model(x) "
    "in the loop body; net(x) is for evaluations"
)


class Replicated:
    """Gradients add up in place, and DDP sums them over the ranks, overlapping with the last backward.

    See :class:`elastrain.elastic.strategies.strategy.Strategy` for the methods.
    """

    tensor = 1
    votes = False
    keeps_gradients = True
    loss: float | None = None
    needs: tuple[torch_probes.Need, ...] = (*torch_probes.EVERY_JOB, *torch_probes.REPLICATED)

    def __init__(self, small: Measure | None = None) -> None:
        """``small``: with ``spec.batch``: what the steps measure of the gradients' noise."""
        self._small = small
        self._models: list[ReplicatedModule] = []
        self._after_backward: AfterBackward | None = None
        """Sums the gradients in place of DDP."""
        self._synchronises_norms = False

    def check(self, order: Order) -> None:
        if self._after_backward is not None:
            self._after_backward.follow()
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
        if len(self._models) > 1:
            self.several_backwards()
        return self._models[-1]

    def whole(self) -> ElasticModule:
        return self._models[0] if self._after_backward is None else self._after_backward.model

    def several_backwards(self) -> ElasticModule:
        if self._small is not None:
            raise ValueError(
                "spec.batch: serves a job with one model and one job.backward() in each loop body: remove it, or sum "
                "the losses of one model"
            )
        for model in self._models:
            model.leave_ddp()
        self._after_backward = AfterBackward([model.module for model in self._models])
        return self._after_backward.model

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        """Buffers may change: each rank has its own."""

    def evaluation(self) -> AbstractContextManager[object]:
        return nullcontext()  # each rank has whole models

    def begin_step(self) -> None:
        if self._after_backward is not None:
            self._after_backward.begin_step()

    def body(self, part: Slice, communicator: Communicator, *, last: bool) -> AbstractContextManager[object]:
        if self._synchronises_norms:  # then a part has one micro-batch
            return batchnorm.over(communicator, counts=bool(part.indices))
        return nullcontext() if last or self._after_backward is not None else self._models[0].without_sums()

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
        if self._after_backward is not None:
            self._after_backward.backward(loss, part, communicator, last=last, retain_graph=retain_graph)
            return
        (model,) = self._models
        weighted = loss * part.weight
        model.put_gradients_back()
        model.begin_backward()
        weighted.backward(retain_graph=retain_graph)
        if last:
            model.check_reached()
        else:
            model.measure()
            model.put_gradients_aside()


class ReplicatedModule(ElasticModule):
    """The model in DDP.

    Forward runs through DDP if gradients are enabled and the module is in training mode or in a loop body (a model may
    train with frozen statistics), otherwise (evaluation) through the model itself.
    """

    def __init__(self, module: nn.Module, small: Measure | None = None, **ddp_options: Any) -> None:
        super().__init__(module)
        self._options = ddp_options
        first = next(p for p in module.parameters() if p.requires_grad)
        self._device, self._small = first.device, small
        self.__dict__["_ddp"] = None  # not among modules(): the model's own names are those of the script
        self._keeps = not (any(ddp_options.get(option) for option in _OWN_COLLECTIVES) or _has_sparse_gradients(module))
        self._known: list[nn.Parameter] = []
        self._wrapped: list[bool] = []
        """Of each parameter of the model: whether it required a gradient when DDP was made."""
        self._communicator: Communicator | None = None
        self._layout = 0
        self._sums = True
        """Whether the next backward sums gradients over the ranks."""
        self._aside: list[tuple[nn.Parameter, torch.Tensor]] = []
        """Gradients of the micro-batches so far, between the bodies of a step."""
        self._last_begun = False
        """Whether the sums of all gradients of this step have begun."""
        self._called = False
        """Whether DDP has run a forward since the last sums."""
        communicates = any(isinstance(m, batchnorm.SyncBatchNorm) for m in module.modules())
        self.learner = Learner(self) if self._keeps and not communicates else None

    @property
    def device(self) -> torch.device:
        """Device of the first parameter that trains."""
        return self._device

    @property
    def layout(self) -> int:
        return 0 if self._trains_others else self._layout

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        self.detach()
        self._communicator = communicator
        if not keep:
            self._wrap_anew()

    def detach(self) -> None:
        self._communicator, self._aside = None, []
        if self._ddp is not None and self._keeps and not self._layout:
            self._rebuild()

    def recover(self) -> None:
        if self._ddp is not None:  # it waits for the rest of the gradients: all ranks wrap anew
            torch_private.remove_hooks(self._ddp)
        self.__dict__["_ddp"], self._layout, self._called = None, 0, False

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

    @contextmanager
    def without_sums(self) -> Iterator[None]:
        """Within it backward adds to the local gradients and sums nothing over the ranks, as in DDP's ``no_sync``.

        DDP's own is of no use: the body may begin to train other parameters, and so have the model wrapped anew.
        """
        self._sums = False
        try:
            yield
        finally:
            self._sums = True

    def leave_ddp(self) -> None:
        """From now on forward runs through the user's model alone. Raises ``ValueError`` for options that need DDP."""
        if lost := [option for option in self._options if option not in _OF_SPEED]:
            raise ValueError(
                f"job.wrap({', '.join(lost)}=…): belongs to DDP, which serves a job with one model and one "
                "job.backward() in each loop body"
            )
        if self._ddp is not None:
            torch_private.remove_hooks(self._ddp)
        self.__dict__["_ddp"], self._communicator = None, None
        self.bare, self.learner = True, None

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
        if self.bare:
            output = self.module(*args, **kwargs)
        else:
            if self._ddp is None or self._trains_others:
                self._wrap_anew()
            self._ddp.require_backward_grad_sync = self._sums
            output, self._called = self._ddp(*args, **kwargs), True
        return self.learner.outputs.record(output) if self.learner is not None and self.warms_up else output

    def begin_backward(self) -> None:
        """A backward follows."""
        self._last_begun = False

    def check_reached(self) -> None:
        """The last backward of a step has ended. Raises ``RuntimeError`` if it has not reached all gradients."""
        called, self._called = self._called, False
        if not self._last_begun:
            raise RuntimeError(_UNUSED.format("") if called else _BESIDE)

    # -- buckets -----------------------------------------------------------------------------------------------------
    def empty_buckets(self) -> list[Any]:
        """DDP's buckets (``GradBucket``), filled with zeros."""
        return torch_private.empty_buckets(self._ddp)

    def begin_sum(
        self, communicator: Communicator, buffer: torch.Tensor, *, last: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Begin the sum of a bucket. ``last``: of the step."""
        self._last_begun = self._last_begun or last
        if buffer.layout is not torch.strided:
            return completed(sum_sparse(communicator, buffer))
        return communicator.sum_bucket(buffer)

    @property
    def _trains_others(self) -> bool:
        """Whether other parameters require gradients than those that DDP sums; takes microseconds.

        A model without any is switched off for a moment, as in a GAN.
        """
        flags = [p.requires_grad for p in self._known]
        return flags != self._wrapped and True in flags

    def _wrap_anew(self) -> None:
        """Have DDP sum the gradients of the parameters that require them now; all ranks do so in the same step."""
        communicator = self._communicator
        self.__dict__["_ddp"] = self._wrap(DdpGroup(None if self._keeps else communicator))
        self._known = list(self.module.parameters())
        self._wrapped = [p.requires_grad for p in self._known]
        self._layout = 0
        if communicator is not None and self._keeps:  # DDP's own rebuilding of its buckets is a collective in a forward
            torch_private.fix_buckets(self._ddp)
            self._layout = digest.of_value(("in the order of the parameters", self._wrapped))

    def _wrap(self, group: DdpGroup) -> DistributedDataParallel:
        if self._ddp is not None:  # it lives until the next collection of garbage, and would sum gradients again
            torch_private.remove_hooks(self._ddp)
        self._device = device = next(p for p in self.module.parameters() if p.requires_grad).device
        devices = {p.device for p in self.module.parameters()}
        ddp = DistributedDataParallel(
            self.module,
            device_ids=[device] if device.type == "cuda" and len(devices) == 1 else None,
            process_group=group,
            init_sync=False,  # the runtime makes the state equal on entry of a generation
            **{_SYNC_BUFFERS: False},  # no collective in forward, where a failure would leave through user code
            **{"gradient_as_bucket_view": True, **self._options},
        )
        ddp.register_comm_hook(None, _untyped(self._sum_bucket))
        return ddp

    def _sum_bucket(self, _state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if self._communicator is None:
            return completed(bucket.buffer())
        if self._small is not None and self._small.open:
            self._small.add([bucket.buffer()])
        return self.begin_sum(self._communicator, bucket.buffer(), last=bucket.is_last())

    def _rebuild(self) -> None:
        """Have DDP rebuild its buckets now, as it does once after its first backward, and note their layout."""
        try:
            rebuilt = torch_private.rebuild_buckets(self._ddp)
        except RuntimeError as e:
            if (unused := re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(e))) is None:
                raise
            trained = [name for name, p in self.module.named_parameters() if p.requires_grad]
            raise RuntimeError(_UNUSED.format(f" ({', '.join(trained[int(i)] for i in unused[1].split())})")) from None
        if rebuilt:
            numbers = {id(p): i for i, p in enumerate(self.module.parameters())}
            buckets = [[numbers[id(p)] for p in b.parameters()] for b in self.empty_buckets()]
            self._layout = digest.of_value(buckets)


def _has_sparse_gradients(module: nn.Module) -> bool:
    """By the same test as DDP's."""
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse for m in module.modules())


def _untyped(hook: Callable[..., Any]) -> Callable[..., Any]:
    """``hook`` without annotations: DDP refuses postponed ones, which are strings."""

    def untyped(state, bucket):  # type: ignore[no-untyped-def]
        return hook(state, bucket)

    return untyped
