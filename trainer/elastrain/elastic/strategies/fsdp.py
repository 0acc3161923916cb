"""FSDP2's and DTensor's collectives over the generation in force.

FSDP gets them by its public interface for custom communication. All-gathers and reduce-scatters connect the ranks of a
group, and the sums of the groups are added by the all-reduce hook. With tensor parallelism a group is a grid: FSDP
connects the ranks of a column, and DTensor (:mod:`elastrain.elastic.strategies.group_mesh`) those of a row.

None of them raises because of a peer: an exception would leave FSDP in the middle of a forward. After a loss they
fill with stand-ins, the rest of the loop body computes on those, and the step is discarded. A layer that is computed
again in the backward (activation checkpoints) may then branch in another way than in the forward, and raise: such an
error ends the backward of a step that is discarded anyway (:func:`elastrain.elastic.torch_private.end_backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from elastrain.elastic import torch_private
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.subgroup import Subgroup

_OUTSIDE = (
    "a forward of a sharded model needs all ranks of its group, which run equally many in the loop body and in "
    "job.evaluate(loader, fn): call the model there (docs/sharded.md)"
)


_VOTED = (
    "a collective of tensor parallelism after the last job.backward() of a step, which would count without its result "
    "if a rank is lost: run forwards before it or in job.evaluate(), clip by job.clip_grad_norm_() (docs/sharded.md)"
)


class Ranks(NamedTuple):
    """Of the generation, by place; this rank among each."""

    mates: Sequence[int]
    """Those over which FSDP spreads the tensors that this rank has a part of."""
    twins: Sequence[int]
    """Those that hold the same shard, in all groups."""
    tensor: Sequence[int]
    """Those that compute each layer together with it."""


class ShardedComm:
    """The subgroups of this rank in the generation in force. Lasts as long as the model."""

    def __init__(self, serves: Callable[[], bool]) -> None:
        """``serves()``: whether all ranks run forwards now."""
        self._serves = serves
        self._communicator: Communicator | None = None
        self._group: Subgroup | None = None
        self._twins: Subgroup | None = None
        self._tensor: Subgroup | None = None
        self.voted = False
        """Whether this rank has voted for the step of the loop body that runs."""

    def enter(self, communicator: Communicator, ranks: Ranks) -> None:
        """From now on over ``communicator``."""
        self._communicator, self.voted = communicator, False
        self._group, self._twins, self._tensor = (Subgroup(communicator, each) for each in ranks)

    def leave(self) -> None:
        """Over nothing: collectives give zeros."""
        self._communicator = self._group = self._twins = self._tensor = None
        self.voted = False

    @property
    def groups(self) -> int:
        """Groups of the generation in force; 1 outside of any."""
        return self._twins.size if self._twins is not None else 1

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        self._run(out, self._group, lambda group: group.all_gather(out, mine), mine)

    def reduce_scatter(self, out: torch.Tensor, parts: torch.Tensor) -> None:
        self._run(out, self._group, lambda group: group.reduce_scatter(out, parts))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._run(tensor, self._twins, lambda twins: twins.all_reduce(tensor))

    # -- tensor parallelism (as of :class:`~elastrain.elastic.strategies.group_mesh.Serves`) -----------------------
    def gather_parts(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        self._check_vote()
        self._run(out, self._tensor, lambda tensor: tensor.all_gather(out, mine), mine)

    def scatter_sums(self, out: torch.Tensor, parts: torch.Tensor) -> None:
        self._check_vote()
        self._run(out, self._tensor, lambda tensor: tensor.reduce_scatter(out, parts))

    def sum_parts(self, tensor: torch.Tensor) -> None:
        self._check_vote()
        self._run(tensor, self._tensor, lambda ranks: ranks.all_reduce(tensor))

    def _check_vote(self) -> None:
        if self.voted:
            raise RuntimeError(_VOTED)

    def _run(
        self,
        out: torch.Tensor,
        subgroup: Subgroup | None,
        collective: Callable[[Subgroup], None],
        mine: torch.Tensor | None = None,
    ) -> None:
        """Fill ``out`` by ``collective``. After a loss fill it with this rank's part for each one, or with zeros: what
        memory held could be a NaN. Raises ``RuntimeError`` where the other ranks run no forward."""
        if not self._serves():
            raise RuntimeError(_OUTSIDE)
        if subgroup is not None and self._communicator is not None and self._communicator.broken is None:
            try:
                collective(subgroup)
            except GenerationBroken:
                pass
            else:
                return
        if mine is None or not mine.numel() or out.numel() % mine.numel():
            out.zero_()
        else:  # of the size of parameters: code of the script that looks at the loss sees no zero, infinity or NaN
            out.view(-1, mine.numel()).copy_(mine.flatten().clone())


_AllGather: Any
_ReduceScatter: Any
_AllGather, _ReduceScatter = torch_private.communication()


class _Gather(_AllGather):
    def __init__(self, comm: ShardedComm) -> None:
        self._comm = comm

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        self._comm.all_gather(output_tensor, input_tensor)


class _Scatter(_ReduceScatter):
    def __init__(self, comm: ShardedComm) -> None:
        self._comm = comm

    allocate = _Gather.allocate

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        assert op == dist.ReduceOp.SUM, op
        self._comm.reduce_scatter(output_tensor, input_tensor)


def communicate_by(comm: ShardedComm, model: nn.Module) -> None:
    """Have all FSDP modules of ``model`` communicate by ``comm``, and sum gradients without dividing them.

    Raises ``ValueError`` naming a module that it cannot serve.
    """
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        try:
            module.set_custom_all_gather(_Gather(comm))
            module.set_custom_reduce_scatter(_Scatter(comm))
            module.set_all_reduce_hook(comm.all_reduce)
        except ValueError as e:
            raise ValueError(f"job.wrap(): {name or 'the model'}: {e}") from e
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
