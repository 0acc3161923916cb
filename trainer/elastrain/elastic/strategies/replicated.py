"""The wrapped model: DDP over the generation in force, with the control vector beside its gradients.

DDP's bucketing and its overlap with backward are used as they are; a communication hook sums the buckets over the
communicator of the generation, and with the last of them the control vector. One DDP lasts for the life of the process:
it is made before the rank has any peer, on a group of its own, and the generations' groups are exchanged beneath it. To
wrap anew at each switch would cost each time what a first step costs (buckets allocated, then rebuilt in the order in
which gradients come).

Gradients are views of the buckets (``gradient_as_bucket_view``) unless the script says otherwise: to copy the sums back
out of the buckets would cost a pass over the whole model's gradients a step, and their memory a second time.

It is kept only where all ranks have cut their gradients into the same buckets, which they compare on entry of a
generation; where they have not, where an option of DDP needs collectives of its own, or where a layer's gradient is
sparse (its bucket has no memory beforehand, and so cannot be listed), every rank wraps anew.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastrain.elastic.comm import digest
from elastrain.elastic.comm.backend import Offer, look, propose
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.control_vector import ControlVector, Words
from elastrain.elastic.comm.gloo import solo_group
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.membership.control import Summed
from elastrain.elastic.strategies import batchnorm

_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"
"""DDP's option has got a new name in torch 2.13."""


_IN_ORDER_OF_PARAMETERS = 1
"""Layout of buckets that DDP makes before it has seen a backward."""
_BUCKET_MB = 25
"""DDP's default: a bucket is full when it has so much."""
_OWN_COLLECTIVES = ("find_unused_parameters", "static_graph")
"""DDP options under which it communicates by itself, beside the hook."""


class ElasticModule(nn.Module):
    """What :meth:`elastrain.Job.wrap` returns; used like ``DistributedDataParallel(module)``.

    ``module`` is the user's model. Forward runs through DDP where gradients are enabled, else (evaluation under
    ``torch.no_grad()`` or in ``eval()`` mode) through the model itself.
    """

    def __init__(self, module: nn.Module, **ddp_options: Any) -> None:
        super().__init__()
        self.module = module
        self._options = ddp_options
        first = next((p for p in module.parameters() if p.requires_grad), None)
        if first is None:
            raise ValueError("job.wrap(model): the model has no parameter that requires a gradient")
        self._vector = ControlVector(first)
        self.__dict__["_ddp"] = None  # not among modules(): the model's own names are those of the script
        self._keeps = not (any(ddp_options.get(option) for option in _OWN_COLLECTIVES) or _has_sparse_gradients(module))
        self._communicator: Communicator | None = None
        self._layout = 0
        self._looking: _Looking | None = None
        self._reached = False
        """Whether the sums of all gradients of this step have begun."""
        self._said: torch.futures.Future[torch.Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Of the first parameter that trains, and so of the control vector."""
        return self._vector.device

    @property
    def layout(self) -> int:
        """A number for the buckets that the gradients are cut into; 0 if a generation cannot begin with them."""
        return self._layout

    @property
    def needs_bytes(self) -> int:
        """About how much of the host's memory training needs beside the parameters themselves, where they are there.

        Their gradients in DDP's buckets, and once more for a step that it looks on in; two moments of each; and what
        optimizers compute with for a moment.
        """
        sizes = self._host_gradients()
        return 4 * sum(sizes) + 2 * max(sizes, default=0)

    @property
    def largest_sum(self) -> int:
        """About how many bytes of gradients are summed at once in the host's memory."""
        sizes = self._host_gradients()
        bucket = int(self._options.get("bucket_cap_mb") or _BUCKET_MB) * 2**20
        return min(sum(sizes), max(bucket, *sizes)) if sizes else 0

    def _host_gradients(self) -> list[int]:
        return [p.nbytes for p in self.module.parameters() if p.requires_grad and p.device.type == "cpu"]

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        """Train over this communicator from the next forward on. Local, no collective.

        ``keep``: :attr:`layout` is the same on all ranks, and not 0. All ranks pass the same value.
        """
        self.detach()
        self._communicator = communicator
        if not keep:
            self.__dict__["_ddp"] = self._wrap(solo_group() if self._keeps else communicator.lend_group())
            self._settle()

    def detach(self) -> None:
        """Train over nothing; gradients of the last step are dropped."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None and communicator.stuck:
            # gloo may still hold the memory of the buckets: nobody must write there again.
            self._layout, self.__dict__["_ddp"] = 0, None
        for p in self.module.parameters():
            p.grad = None
        if self._ddp is not None and self._keeps and not self._layout:
            self._rebuild()

    def offer(self) -> Offer:
        """What the ranks of a generation could sum this model's gradients by, as far as this rank can tell.

        Raises ``ValueError`` if ``ELASTRAIN_BACKEND`` demands what cannot be had.
        """
        return replace(propose(look(self.device), os.environ), group=self.device.type != "cpu" or not self._keeps)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it backward adds to the local gradients and sums nothing over the ranks (DDP's ``no_sync``)."""
        return self._ddp.no_sync() if self._ddp is not None else nullcontext()

    def _wrap(self, group: dist.ProcessGroup) -> DistributedDataParallel:
        self._vector.follow(next(p for p in self.module.parameters() if p.requires_grad).device)
        device, devices = self.device, {p.device for p in self.module.parameters()}
        ddp = DistributedDataParallel(
            self.module,
            device_ids=[device] if device.type == "cuda" and len(devices) == 1 else None,
            process_group=group,
            init_sync=False,  # state is made equal on entry of the generation, by the runtime
            **{_SYNC_BUFFERS: False},  # no collective in forward, where a failure would leave through user code
            **{"gradient_as_bucket_view": True, **self._options},
        )
        ddp.register_comm_hook(None, _untyped(self._sum_bucket))
        return ddp

    def _sum_bucket(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, communicator = bucket.buffer(), self._communicator
        if communicator is None:
            return completed(buffer)
        return self._begin(communicator, buffer, last=bucket.is_last())

    def _begin(
        self, communicator: Communicator, buffer: torch.Tensor, *, last: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """The sum of a bucket. With the ``last`` one goes what this rank says.

        Not on a device: there it is said after backward, so that its sum is ordered behind the others' by the stream of
        the training thread, which need not be autograd's.
        """
        self._reached = self._reached or last
        if not (last and self._vector.waits and self.device.type == "cpu"):
            return communicator.sum_bucket(buffer)
        said = self._vector.say_on_host()
        gradients, self._said = communicator.sum_together(buffer, said.values, before=said.add_connected)
        return gradients

    def _rebuild(self) -> None:
        """Have DDP rebuild its buckets now, as it does once after its first backward, and take note of them."""
        reducer = self._ddp.reducer
        if reducer._rebuild_buckets():
            numbers = {id(p): i for i, p in enumerate(self.module.parameters())}
            buckets = [[numbers[id(p)] for p in b.parameters()] for b in reducer._get_zeros_like_grad_buckets()]
            self._layout = digest.of_value(buckets)

    def _settle(self) -> None:
        """Leave DDP's buckets in the order of the parameters, which is the same everywhere.

        To rebuild them is a collective, and takes place in a forward.
        """
        if self._keeps:
            self._ddp.reducer = _Settled(self._ddp.reducer)
            self._layout = _IN_ORDER_OF_PARAMETERS

    def prepare(self, words: Words) -> None:
        """What this rank says with the next backward (:mod:`elastrain.elastic.membership.control`)."""
        self._reached = False
        self._vector.prepare(words)

    @property
    def can_look_on(self) -> bool:
        """Whether :meth:`look_on` could take the place of a backward, on this rank and on its peers."""
        own_sums = any(isinstance(m, batchnorm.SyncBatchNorm) for m in self.module.modules())
        return self._keeps and not own_sums

    @property
    def looks_on(self) -> bool:
        """Whether :meth:`look_on` has begun and not been ended."""
        return self._looking is not None

    def look_on(self, communicator: Communicator, connected: Collection[int], *, getting: bool) -> None:
        """Begin, in place of a backward: take the sum of the gradients of the other ranks, adding nothing to it.

        To be called when the ranks have agreed to, the first time before :meth:`attach`; the sum is taken while the
        state arrives. ``connected`` as of :class:`Words`; ``getting``: after this step some of it will be missing.
        """
        self.prepare(Words(lambda: connected, torch.zeros(()), looking=getting))
        self._looking = _Looking([], [])
        buckets = self._ddp.reducer._get_zeros_like_grad_buckets()
        for bucket in buckets:
            self._looking.gradients.extend(zip(bucket.parameters(), bucket.gradients(), strict=True))
            self._looking.sums.append(self._begin(communicator, bucket.buffer(), last=bucket is buckets[-1]))
        self._say(communicator)

    def looked_on(self, communicator: Communicator) -> Summed:
        """End it: the gradients are the sum, as after a backward. Returns :meth:`heard`.

        Where it failed the communicator is broken, and the gradients mean nothing.
        """
        looking, self._looking = self._looking, None
        assert looking is not None
        torch.futures.wait_all(looking.sums)
        for parameter, gradient in looking.gradients:
            parameter.grad = gradient
        return self.heard(communicator)

    def look_away(self) -> None:
        """End it where the communicator is broken."""
        self._looking = None

    def heard(self, communicator: Communicator) -> Summed:
        """What all ranks have said with the last backward. On a GPU this waits for it, and for all other sums.

        Raises ``RuntimeError`` if the backward has not reached all gradients.
        """
        if not self._reached:
            raise RuntimeError(
                "the loss given to job.backward() does not depend on all parameters of the wrapped model that train; "
                "if that is meant, use job.wrap(model, find_unused_parameters=True)"
            )
        self._say(communicator)
        assert self._said is not None
        self._said.wait()
        self._said = None
        heard = self._vector.hear()
        communicator.sums_awaited()
        return heard

    def _say(self, communicator: Communicator) -> None:
        if self._vector.waits:
            self._said = communicator.sum_bucket(self._vector.say_on_device())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self.training:
            return self.module(*args, **kwargs)
        if self._ddp is None:
            self.__dict__["_ddp"] = self._wrap(solo_group())
        return self._ddp(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Looking:
    """A step that this rank looks on in."""

    gradients: list[tuple[nn.Parameter, torch.Tensor]]
    """Where each parameter's is summed."""
    sums: list[torch.futures.Future[torch.Tensor]]


class _Settled:
    """DDP's reducer, but that it does not rebuild its buckets."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


def _has_sparse_gradients(module: nn.Module) -> bool:
    """By the same test as DDP's."""
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse for m in module.modules())


def _untyped(hook: Callable[..., Any]) -> Callable[..., Any]:
    """``hook`` without annotations: DDP refuses postponed ones, which are strings."""

    def untyped(state, bucket):  # type: ignore[no-untyped-def]
        return hook(state, bucket)

    return untyped
