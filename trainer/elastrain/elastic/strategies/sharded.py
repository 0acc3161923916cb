"""Models that ``fully_shard`` has spread over the ranks of a group; groups replicate each other (HSDP).

FSDP2 gathers parameters and scatters gradients inside a group, and sums gradients over the groups, all over the
generation in force (:mod:`elastrain.elastic.strategies.fsdp`). The sharding never changes, so nothing of FSDP is
touched when groups come and go.

*The commit rule.* A rank publishes its control vector only when it holds all its gradients, and the vector is summed in
two hops: a rank that has the sum knows that every rank holds every complete gradient. A rank that has published it and
lacks the sum keeps its gradients until it hears from its peers whether the step counts
(:mod:`elastrain.elastic.membership.ballot`). The vote also carries the squared norm, so that clipping needs no
collective after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elastrain.api.settings import Transport
from elastrain.data.order import Order, Slice
from elastrain.elastic.comm.backend import Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.control_vector import ControlInputs, ControlVector
from elastrain.elastic.membership.control import Summed
from elastrain.elastic.reduction import sum_of_squares
from elastrain.elastic.reshard.first import OFFER
from elastrain.elastic.state.slices import Holders
from elastrain.elastic.strategies.strategy import ElasticModule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Ranks = tuple[Sequence[int], Sequence[int]]
"""The ranks of a rank's group, and those that hold its shard."""
_NOT_YET = "is not supported with spec.parallelism.shards yet (docs/sharded.md)"


class Sharded:
    """One model, sharded by FSDP2. See :class:`elastrain.elastic.strategies.strategy.Strategy` for the methods."""

    votes = True

    def __init__(self, shards: int, shard: int) -> None:
        """``shard``: the part of the model that this rank holds, of ``shards``."""
        self._shards, self._shard = shards, shard
        self._mesh: DeviceMesh | None = None
        self._model: ShardedModule | None = None

    def mesh(self, device: torch.device) -> DeviceMesh:
        """The ranks of this rank's group, for ``fully_shard``; always the same one."""
        if self._mesh is None:
            from elastrain.elastic.strategies.group_mesh import group_mesh

            self._mesh = group_mesh(device.type, self._shards, self._shard)
        return self._mesh

    def check(self, order: Order) -> None:
        """Any order: the ranks run equally many micro-batches."""

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        if ddp_options:
            raise ValueError(
                f"job.wrap({', '.join(ddp_options)}=…): options of DDP, which does not train sharded models"
            )
        if self._model is not None:
            raise ValueError(f"job.wrap(): a second model {_NOT_YET}")
        self._model = ShardedModule(module, self._mesh, self.ranks)
        return self._model

    def ranks(self, communicator: Communicator) -> Ranks:
        """Of this rank: its group, whose ranks are neighbours, by shard; and those that hold the same shard."""
        rank, shards = communicator.rank, self._shards
        first = rank - rank % shards
        return range(first, first + shards), range(rank % shards, communicator.world_size, shards)

    def whole(self) -> ElasticModule:
        assert self._model is not None
        return self._model

    def several_backwards(self) -> ElasticModule:
        raise ValueError(f"several calls of job.backward() in a loop body: {_NOT_YET}")

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        """Buffers may change: each rank has its own."""

    def evaluation(self) -> AbstractContextManager[object]:
        assert self._model is not None
        return self._model.evaluates()

    def holders(self, sources: Sequence[int]) -> Holders:
        return lambda _: sources

    def begin_step(self) -> None:
        assert self._model is not None
        self._model.begin_step()

    def body(self, part: Slice, communicator: Communicator, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def backward(
        self,
        loss: torch.Tensor,
        unscaled: torch.Tensor,
        part: Slice,
        inputs: ControlInputs,
        communicator: Communicator,
        *,
        last: bool,
        retain_graph: bool = False,
    ) -> Summed | None:
        """Returns None if this rank has not voted, since a gradient is missing."""
        model = self._model
        assert model is not None
        if unscaled is not loss:
            raise ValueError(f"job.backward(): a loss that a GradScaler has scaled {_NOT_YET}; use bfloat16")
        (loss * part.weight).backward(retain_graph=retain_graph)
        if not last:
            model.put_aside()
            return None
        model.add_up()
        if communicator.broken is not None:
            return None
        return model.vote(communicator, inputs, unscaled.detach() * part.weight)


class ShardedModule(ElasticModule):
    """The model whose parameters FSDP has spread over the ranks of a group."""

    copies: Callable[[], bool] = staticmethod(lambda: False)
    """Called before a vote: whether this rank has not received all of the newest snapshot. It may wait for it."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh | None, ranks: Callable[[Communicator], Ranks]) -> None:
        """Raises ``ValueError`` naming the part of the model that is not sharded over ``mesh``."""
        super().__init__(module)
        _check(module, mesh)
        from elastrain.elastic.strategies.fsdp import ShardedComm, communicate_by

        self._ranks = ranks
        self._comm = ShardedComm(self._serves)
        communicate_by(self._comm, module)
        first = next(p for p in module.parameters() if p.requires_grad)
        self._vector = ControlVector(first)
        self._partial: dict[nn.Parameter, torch.Tensor] = {}
        """Sums of the gradients of the step's micro-batches so far."""
        self._evaluates = False

    def offer(self, demanded: Transport) -> Offer:
        if demanded == "nccl":
            raise ValueError(f"ELASTRAIN_BACKEND: nccl {_NOT_YET}; use tcp or auto")
        return OFFER

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        self.detach()
        self._comm.enter(communicator, *self._ranks(communicator))

    def detach(self) -> None:
        self._comm.leave()
        super().detach()

    def begin_step(self) -> None:
        self.squares, self._partial = None, {}

    def put_aside(self) -> None:
        """Keep the gradients of a micro-batch where no code of the script changes them."""
        for p in self.module.parameters():
            if p.grad is None:
                continue
            if (kept := self._partial.setdefault(p, p.grad)) is not p.grad:
                kept.to_local().add_(p.grad.to_local())
            p.grad = None

    def add_up(self) -> None:
        """The gradients of the last micro-batch become those of the step."""
        if self._partial:
            self.put_aside()
            for p, kept in self._partial.items():
                p.grad = kept
            self._partial = {}

    @contextmanager
    def evaluates(self) -> Iterator[None]:
        """Forwards run outside of a loop body; afterwards no parameter is gathered."""
        from torch.distributed.fsdp import FSDPModule

        self._evaluates = True
        try:
            yield
        finally:
            self._evaluates = False
            for module in self.module.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def vote(self, communicator: Communicator, inputs: ControlInputs, loss: torch.Tensor) -> Summed:
        """All gradients are complete on this rank: publish the control vector. Void if the communicator has broken."""
        squares = sum_of_squares(self._gradients()) / self._comm.groups  # twins hold the same gradients
        votes = torch.tensor([squares, float(self.copies())], dtype=torch.float64)
        self._vector.prepare(inputs, loss)
        return self._vector.conclude(communicator, votes).with_votes(*votes.tolist())

    def scale_gradients(self, factor: float) -> None:
        if factor != 1.0:
            self.squares = None if self.squares is None else self.squares * factor**2
            self._multiply(factor)

    def clip_gradients(self, max_norm: float, norm_type: float) -> torch.Tensor:
        if norm_type != 2.0:
            raise ValueError(f"job.clip_grad_norm_(norm_type={norm_type:g}): {_NOT_YET}; use 2")
        squares = self.squares  # None: of the warm-up, or of a step that does not count
        norm = math.sqrt(sum_of_squares(self._gradients()) if squares is None else squares)
        if (factor := max_norm / (norm + 1e-6)) < 1.0:  # as in torch
            self._multiply(factor)
        return torch.tensor(norm, dtype=torch.float64)

    def _serves(self) -> bool:
        return self.in_body() or self._evaluates

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's parts of the gradients that it has."""
        return [p.grad.to_local() for p in self.module.parameters() if p.grad is not None]

    def _multiply(self, factor: float) -> None:
        if gradients := self._gradients():
            with torch.no_grad():
                torch._foreach_mul_(gradients, factor)


def _check(module: nn.Module, mesh: DeviceMesh | None) -> None:
    """Raises ``ValueError`` naming a parameter of ``module`` that ``fully_shard`` has not spread over ``mesh``."""
    from torch.distributed.tensor import DTensor

    for name, m in module.named_modules():
        if isinstance(m, nn.SyncBatchNorm):
            raise ValueError(f"job.wrap(): {name}: SyncBatchNorm {_NOT_YET}; use GroupNorm or LayerNorm")
    for name, p in module.named_parameters():
        if not isinstance(p, DTensor):
            raise ValueError(
                f"job.wrap(): parameter {name} is not sharded, and spec.parallelism.shards is more than 1: call "
                "fully_shard(layer, mesh=job.mesh) for the layers, and at last fully_shard(net, mesh=job.mesh)"
            )
        if p.device_mesh is not mesh:
            raise ValueError(
                f"job.wrap(): parameter {name} is sharded over another mesh, {p.device_mesh}: give fully_shard "
                "mesh=job.mesh; meshes of two dimensions and tensor parallelism are not supported yet (docs/sharded.md)"
            )
