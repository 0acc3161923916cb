"""The wrapped model: DDP over the generation in force, with the control vector among its gradients.

DDP's bucketing and its overlap with backward are used as they are. A communication hook sums the buckets over the
communicator of the generation; at a switch the model is wrapped anew on every rank, since survivors have rebuilt their
buckets in the order of their gradients and a joiner has not.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from elastrain.elastic import control
from elastrain.elastic.communicator import Communicator

_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"
"""DDP's option has got a new name in torch 2.13."""


class ElasticModule(nn.Module):
    """What :meth:`elastrain.Job.wrap` returns; used like ``DistributedDataParallel(module)``.

    ``module`` is the user's model. Forward runs through DDP while a generation is in force and gradients are enabled,
    else (warm-up, evaluation under ``torch.no_grad()``) through the model itself.
    """

    def __init__(self, module: nn.Module, **ddp_options: Any) -> None:
        super().__init__()
        self.module = module
        self._options = ddp_options
        first = next((p for p in module.parameters() if p.requires_grad), None)
        if first is None:
            raise ValueError("job.wrap(model): the model has no parameter that requires a gradient")
        dtype = first.dtype if first.dtype in (torch.float32, torch.float64) else torch.float32
        # Hidden from parameters() and state_dict(): users' optimizers and checkpoints never see the control vector.
        self.__dict__["_carrier"] = _Carrier(module, first.device, dtype)
        self.__dict__["_ddp"] = None

    def attach(self, communicator: Communicator) -> None:
        """Train over this communicator from the next forward on. Local, no collective."""
        self.detach()
        carrier: _Carrier = self._carrier
        device = next(self.module.parameters()).device
        ddp = DistributedDataParallel(
            carrier,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=communicator.group,
            init_sync=False,  # state is made equal on entry of the generation, by the runtime
            **{_SYNC_BUFFERS: False},  # no collective in forward, where a failure would leave through user code
            **self._options,
        )
        ddp.register_comm_hook(None, communicator.all_reduce_hook())
        self.__dict__["_ddp"] = ddp

    def detach(self) -> None:
        """Train over nothing; gradients of the last step are dropped. The old reducer's hooks go with it."""
        self.__dict__["_ddp"] = None
        for p in (*self.module.parameters(), self._carrier.control):
            p.grad = None

    def set_control(self, connected: Collection[int], weighted_loss: torch.Tensor) -> None:
        """What the next backward contributes (:mod:`elastrain.elastic.control`); nothing waits for the loss."""
        values: torch.Tensor = self._carrier.values
        values[: control.SLOTS] = torch.tensor(control.encode(connected), dtype=values.dtype)
        values[control.LOSS] = weighted_loss.detach()

    def control_sums(self) -> list[float]:
        """The vector summed over all ranks by the last backward. On a GPU this waits for it."""
        grad = self._carrier.control.grad
        if grad is None:
            raise RuntimeError("the loss given to job.backward() does not depend on the output of the wrapped model")
        sums: list[float] = grad.tolist()
        self._carrier.control.grad = None
        return sums

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._ddp is None or not torch.is_grad_enabled() or not self.training:
            return self.module(*args, **kwargs)
        return self._ddp(*args, **kwargs)


class _Carrier(nn.Module):
    """The user's model with one parameter more, whose gradient is the control vector."""

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.control = nn.Parameter(torch.zeros(control.SIZE, device=device, dtype=dtype))
        self.values: torch.Tensor
        self.register_buffer("values", torch.zeros(control.SIZE, device=device, dtype=dtype), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = _pytree.tree_flatten(self.module(*args, **kwargs))
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaves[i] = _Carry.apply(leaf, self.control, self.values)
                break
        else:
            raise RuntimeError("the wrapped model's output has no tensor that requires a gradient")
        return _pytree.tree_unflatten(leaves, spec)


class _Carry(torch.autograd.Function):
    """Identity on the output; in backward the control parameter's gradient is ``values`` as they are then."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, _parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.values = values
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return grads[0], ctx.values.clone(), None
