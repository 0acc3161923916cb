"""Models that ``fully_shard`` has spread over the ranks of a group; groups replicate each other (HSDP).

FSDP2 gathers parameters and scatters gradients inside a group, and sums gradients over the groups, all over the
generation in force (:mod:`elastrain.elastic.strategies.sharding.fsdp`). The sharding never changes, so nothing of FSDP
is touched when groups come and go. With tensor parallelism, ranks that compute each layer together have the same
samples; the first of them contributes their loss and counts.

*The commit rule.* A rank publishes its control vector only when it holds all its gradients, and the vector is summed in
two hops: a rank that has the sum knows that every rank holds every complete gradient. A rank that has published it and
lacks the sum keeps its gradients until it hears from its peers whether the step counts
(:mod:`elastrain.elastic.commit.ledger`). The vote also carries the squared norm, so that clipping needs no
collective after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elastrain.api.settings import Transport
from elastrain.api.shape import Shape
from elastrain.data.order import Order, Slice
from elastrain.elastic import torch_private, torch_probes
from elastrain.elastic.comm.backend import Offer, look, propose_within
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind, RanksDiverged
from elastrain.elastic.reduction import sum_of_products, sum_of_squares
from elastrain.elastic.strategies import reached
from elastrain.elastic.strategies.scheduled import Scheduled
from elastrain.elastic.strategies.sharding import alike, placed
from elastrain.elastic.strategies.strategy import ElasticModule, Strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from elastrain.elastic.strategies.sharding.fsdp import Ranks
    from elastrain.elastic.strategies.sharding.inner_group import InnerGroup

_NOT_YET = "is not supported with spec.parallelism.shards yet (docs/sharded.md)"


class Sharded(Strategy):
    """One model, sharded by FSDP2."""

    votes = True
    needs: tuple[torch_probes.Need, ...] = (*torch_probes.EVERY_JOB, *torch_probes.SHARDED)

    def __init__(self, shape: Shape, shard: int, demanded: Transport = "auto") -> None:
        """``shard``: the place of this rank in a group of this ``shape``. ``demanded``: of the settings."""
        self.shape, self._shard = shape, shard
        if demanded == "gloo":
            self.needs = (*self.needs, *torch_probes.OVER_GLOO)
        self._mesh: DeviceMesh | None = None
        self._groups: list[InnerGroup] = []
        self._model: ShardedModule | None = None

    def mesh(self, device: torch.device) -> DeviceMesh:
        """The ranks of this rank's group, for ``fully_shard``; always the same one. Raises ``RuntimeError``."""
        if self._mesh is None:
            torch_probes.check(self.needs)
            from elastrain.elastic.strategies.sharding.group_mesh import group_mesh

            self._mesh, self._groups = group_mesh(device.type, self.grid, self._shard)
        return self._mesh

    @property
    def grid(self) -> Shape:
        """Of the mesh."""
        return self.shape

    def check(self, order: Order) -> None:
        """Any order: the ranks run equally many micro-batches."""

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        if ddp_options:
            raise ValueError(
                f"job.wrap({', '.join(ddp_options)}=…): options of DDP, which does not train sharded models"
            )
        if self._model is not None:
            raise ValueError(f"job.wrap(): a second model {_NOT_YET}")
        self._model = ShardedModule(module, self._mesh, self.grid, self.ranks, self._groups)
        return self._model

    def ranks(self, communicator: Communicator) -> Ranks:
        """The ranks of a group are neighbours, by shard."""
        from elastrain.elastic.strategies.sharding.fsdp import Ranks

        rank, shape = communicator.rank, self.shape
        inner = {name: shape.along(rank, name) for name in shape.names}
        return Ranks(inner, twins=lambda names: shape.twins(rank, communicator.world_size, *names))

    def whole(self) -> ShardedModule:
        assert self._model is not None
        return self._model

    def several_backwards(self) -> ElasticModule:
        raise ValueError(f"several calls of job.backward() in a loop body: {_NOT_YET}")

    def evaluation(self) -> AbstractContextManager[object]:
        return self.whole().evaluates()

    def begin_step(self) -> None:
        self.whole().begin_step()

    def backward(
        self,
        loss: torch.Tensor | Scheduled,
        unscaled: torch.Tensor,
        part: Slice,
        communicator: Communicator,
        *,
        last: bool,
        retain_graph: bool = False,
    ) -> None:
        model = self.whole()
        if isinstance(loss, Scheduled):
            loss.run(part.weight, needed=self.shape.has_loss(communicator.rank))
        elif unscaled is not loss:
            raise ValueError(f"job.backward(): a loss that a GradScaler has scaled {_NOT_YET}; use bfloat16")
        else:
            (loss * part.weight).backward(retain_graph=retain_graph)
        model.note_reached()
        if not last:
            model.put_aside()
            return
        model.add_up()
        if communicator.broken is not None:
            model.name_unused(communicator)


class ShardedModule(ElasticModule):
    """The model whose parameters FSDP has spread over the ranks of a group."""

    copies: Callable[[], bool] = staticmethod(lambda: False)
    """Called before a vote: whether this rank has not received all of the newest snapshot. It may wait for it."""

    def __init__(
        self,
        module: nn.Module,
        mesh: DeviceMesh | None,
        shape: Shape,
        ranks: Callable[[Communicator], Ranks],
        groups: Sequence[InnerGroup],
    ) -> None:
        """``mesh`` has this ``shape``, and ``groups``. Raises ``ValueError`` naming the part of the model that is not
        sharded over it as it must be."""
        super().__init__(module)
        placed.check(module, mesh, shape)
        from elastrain.elastic.strategies.sharding.fsdp import ShardedComm, communicate_by

        self._ranks, self._shape = ranks, shape
        self._comm = ShardedComm(self._serves, groups, self._around_sum)
        communicate_by(self._comm, module, lambda p: placed.summed(p, shape))
        self._partial: dict[nn.Parameter, torch.Tensor] = {}
        """Sums of the gradients of the step's micro-batches so far."""
        self._squares: float | None = None
        """Sum of the squares of all gradients of the step; None: of the warm-up, or of a step that does not count."""
        self._evaluates = False
        self._stage = 0
        """Number of its layers among those of a pipeline."""
        named = dict(module.named_parameters())
        self._ordered, self._reached = list(named.values()), reached.Reached(list(named))

    @property
    def void(self) -> str:
        return self._comm.void

    def offer(self, demanded: Transport) -> Offer:
        return propose_within(look(self.device), demanded)

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        self.detach()
        self._stage = self._shape.stage(communicator.rank)
        self._comm.enter(communicator, self._ranks(communicator), self.device)

    def agree(self, communicator: Communicator) -> None:
        """What ranks of a group hold alike becomes that of the first of them, along each dimension that has not cut it.
        Raises as of the base."""
        from elastrain.elastic.comm.subgroup import Subgroup

        inner = self._ranks(communicator).inner
        for name in placed.may_be_alike(self._shape):
            row = Subgroup(communicator, inner[name])
            for p in self.module.parameters() if row.size > 1 else ():
                if name not in placed.cut(p):
                    mine = p.detach().to_local()
                    of_all = mine.new_zeros(row.size, max(mine.numel(), 1))  # an empty part too: all exchange alike
                    of_all[row.place, : mine.numel()] = mine.flatten()
                    row.all_gather(of_all, of_all[row.place])
                    mine.copy_(of_all[0, : mine.numel()].view(mine.shape))

    def detach(self) -> None:
        self._comm.leave()

    def serve(self, groups: Sequence[InnerGroup]) -> None:
        """The model lies on another mesh, of these ``groups``."""
        for group in groups:
            group.serves = self._comm

    def note_reached(self) -> None:
        """A micro-batch has run backward: note which parameters have a gradient."""
        self._reached.add(tuple([p.grad is not None for p in self._ordered]))

    def name_unused(self, communicator: Communicator) -> None:
        """Ranks that use different parameters may sum other sizes, and differ before the vote: name them."""
        if communicator.diverged is not None:
            communicator.diverged += reached.missing(communicator.diverged, self._reached.describe(), communicator.rank)

    def begin_step(self) -> None:
        self._reached.begin_step()
        self._squares, self._partial = None, {}
        self._comm.begin()

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
        self._evaluates = True
        self._comm.begin()
        try:
            yield
        finally:
            self._evaluates = False
            for module in torch_private.fsdp_modules(self.module):
                module.reshard()

    def votes(self) -> Sequence[float]:
        """As of :attr:`products`, whether this rank is :attr:`copying`, and which parameters its backwards reached."""
        products = [value / self._comm.groups for value in self._products()]  # twins hold the same gradients
        mine = [*products, float(self.copies()), *self._of_stage(self._reached.votes)]
        self._comm.vote()
        return mine

    def check_votes(self, sums: Sequence[float], communicator: Communicator) -> None:
        shape, size = self._shape, communicator.world_size
        votes = [sums[-reached.WIDTH * (number + 1) :][: reached.WIDTH] for number in reversed(range(shape.stages))]
        if all(reached.alike(vote, size // shape.stages) for vote in votes):
            return
        texts = communicator.all_gather_bytes(self._reached.describe().encode(), Kind.CONTROL)
        by_stage = [[r for r in range(size) if shape.stage(r) == stage] for stage in range(shape.stages)]
        stages = [{r: texts[r].decode() for r in ranks} for ranks in by_stage]
        differing = next((each for each in stages if len({*each.values()}) > 1), stages[0])
        raise RanksDiverged(reached.difference(differing, communicator.step))

    def _of_stage(self, vote: Sequence[float]) -> list[float]:
        """``vote`` in the place of this rank's layers: ranks with other layers have other parameters."""
        before = self._stage * len(vote)
        return [*[0.0] * before, *vote, *[0.0] * (self._shape.stages * len(vote) - before - len(vote))]

    def check_alike(self, communicator: Communicator) -> None:
        alike.compare(self.module, self._shape, communicator)

    def take_votes(self, sums: Sequence[float]) -> None:
        squares, mixed, kept = sums[:3]
        self.products, self.copying = (squares, mixed, kept), round(sums[3])

    def recover(self) -> None:
        """Collectives give stand-ins meanwhile, since the generation has broken."""
        torch_private.end_backward(self.module)

    def scale_gradients(self, factor: float) -> None:
        if self.products is not None:
            squares, mixed, kept = self.products
            self._squares = squares * factor**2 + 2 * mixed * factor + kept
        if factor != 1.0:
            self._multiply(factor)

    def clip_gradients(self, max_norm: float, norm_type: float) -> torch.Tensor:
        if norm_type != 2.0:
            raise ValueError(f"job.clip_grad_norm_(norm_type={norm_type:g}): {_NOT_YET}; use 2")
        squares = self._squares
        norm = math.sqrt(sum_of_squares(self._gradients()) if squares is None else squares)
        if (factor := max_norm / (norm + 1e-6)) < 1.0:  # as in torch
            self._multiply(factor)
        return torch.tensor(norm, dtype=torch.float64)

    def _serves(self) -> bool:
        return self.in_body() or self._evaluates

    def _around_sum(self) -> AbstractContextManager[object]:
        return self.around_sums()

    def _products(self) -> tuple[float, float, float]:
        """This rank's part of :attr:`products`."""
        new = {p: p.grad for p in self.module.parameters() if p.grad is not None}
        both = {p: gradient for p, gradient in self.aside.items() if p in new}
        return self._product(new, new), self._product(both, new), self._product(self.aside, self.aside)

    def _product(self, of: Mapping[nn.Parameter, Any], by: Mapping[nn.Parameter, Any]) -> float:
        """The scalar product. What ranks of a group hold alike counts once over them."""
        pairs: dict[int, list[tuple[Any, Any]]] = {}
        for p, gradient in of.items():
            pairs.setdefault(placed.holders(p, self._shape), []).append((gradient.to_local(), by[p].to_local()))
        return sum(sum_of_products(of_some) / holders for holders, of_some in pairs.items())

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's parts of the gradients that it has."""
        return [p.grad.to_local() for p in self.module.parameters() if p.grad is not None]

    def _multiply(self, factor: float) -> None:
        if gradients := self._gradients():
            with torch.no_grad():
                torch_private.foreach_mul_(gradients, factor)
