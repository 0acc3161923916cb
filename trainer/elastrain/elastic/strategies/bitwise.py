"""``numerics="bitwise"``: the same bits from any history of rescales.

A global batch is cut into a fixed number of logical micro-batches. Each is computed alone, on whichever rank has it;
the gradients are added in the order of a fixed tree (:mod:`elastrain.elastic.strategies.summation_tree`). Over the
ranks the tree is
completed in chunks: rank ``c`` gets chunk ``c`` of every node that the ranks were left with, adds them in the tree's
order, and sends the sum to all (a reduce-scatter and an all-gather, with the order of additions in our hands).
Both go in pieces over the ranks' own connections (:mod:`elastrain.elastic.comm.mesh`), so a piece is added and returned
while the next ones are on their way, and a lost peer ends the step at once.

The cost: nothing overlaps with backward, each micro-batch is a backward of its own, and a rank keeps up to
``2 * log2(micro_batches)`` copies of the gradients. Ranks beyond the number of micro-batches compute nothing that
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from elastrain.data.order import Order, Slice, run_of
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed
from elastrain.elastic.strategies.replicated import ElasticModule
from elastrain.elastic.strategies.summation_tree import Node, TreeSum, nodes_of

PIECE = 1 << 18
"""Numbers that are added and returned at a time: enough that what Python does in between does not count."""


def make_deterministic() -> None:
    """Have torch choose algorithms that give the same bits each time, for the whole process.

    Operations that have none then raise ``RuntimeError`` naming themselves.
    """
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it only costs time
    torch.backends.cudnn.benchmark = False  # it picks algorithms by timing them


class BitwiseModule(ElasticModule):
    """The model without DDP: gradients stay on the rank until all of the step's micro-batches are done."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)

    @property
    def can_look_on(self) -> bool:
        return False

    def attach(self, communicator: Communicator, *, keep: bool) -> None:
        self.detach()

    def offer(self) -> Offer:
        return Offer(Backend.GLOO, why="numerics='bitwise' adds gradients in the host's memory")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Bitwise:
    """Gradients as the tree's sum. See :class:`elastrain.elastic.strategies.gradients.Gradients` for the methods."""

    def __init__(self) -> None:
        self._buffers: _Buffers | None = None
        self._leaves = (0, 0, 1)
        self._next_leaf = 0
        self._sum: TreeSum[_Buffer] = TreeSum(1, self._add)

    def check(self, order: Order) -> None:
        if order.micro_batches is None:
            raise ValueError(
                "job.dataloader(): numerics='bitwise' needs micro_batches=…, into how many each global batch is cut at "
                "any world size. It is part of the result: keep it for the life of the job, and no smaller than the "
                "largest number of ranks"
            )

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        if ddp_options:
            raise ValueError(f"job.wrap({', '.join(ddp_options)}=…): numerics='bitwise' does without DDP")
        if norms := [name for name, m in module.named_modules() if isinstance(m, nn.SyncBatchNorm)]:
            raise ValueError(f"job.wrap(): numerics='bitwise': {norms[0]} is a SyncBatchNorm; use GroupNorm")
        model = BitwiseModule(module)
        self._buffers = _Buffers(module)
        return model

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        if changed_buffers:
            raise RuntimeError(
                f"numerics='bitwise': forward changes the model's buffers {', '.join(changed_buffers[:3])}. Running "
                "statistics, as BatchNorm's, depend on which rank sees what; use track_running_stats=False, GroupNorm "
                "or LayerNorm"
            )

    def begin(self, leaves: tuple[int, int, int] | None) -> None:
        assert leaves is not None and self._buffers is not None
        for _, value in self._sum.parts:  # of a step that was discarded
            self._buffers.free(value)
        self._leaves, self._next_leaf = leaves, leaves[0]
        self._sum = TreeSum(leaves[2], self._add)

    def body(self, part: Slice, communicator: Communicator, *, last: bool) -> AbstractContextManager[object]:
        assert self._buffers is not None
        self._buffers.clear_gradients()
        return nullcontext()

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
        buffers = self._buffers
        assert buffers is not None
        buffers.fit(communicator.world_size)
        weighted = loss * part.weight
        weighted.backward()
        if part.indices:  # a stand-in is no leaf
            self._push_leaf(buffers, weighted)
        if not last:
            return None
        proposals = connected()
        shares = [*control.encode(proposals), compute, float(stop)]
        if communicator.world_size == 1:
            total = self._sum.root()
        else:
            try:
                with communicator.exchange() as mesh:
                    total, shares = self._exchange(communicator, mesh, shares)
            except GenerationBroken:
                # The caller sees from the communicator that the step is discarded.
                return Summed([*shares, 0.0, 0.0], ())
            for _, value in self._sum.parts:
                buffers.free(value)
        self._sum.parts.clear()
        *slots, compute, stops = shares
        return Summed([*slots, buffers.set_gradients(total), compute, 0.0, stops], proposals)

    def _push_leaf(self, buffers: _Buffers, loss: torch.Tensor) -> None:
        leaf, left = self._next_leaf, self._sum.take_left((0, self._next_leaf))
        if left is None:
            self._sum.push((0, leaf), buffers.take_gradients(loss))
        else:
            buffers.add_gradients(left, loss)
            self._sum.push((1, leaf // 2), left)
        self._next_leaf += 1

    def _add(self, left: _Buffer, right: _Buffer) -> _Buffer:
        assert self._buffers is not None
        left.flat += right.flat
        self._buffers.free(right)
        return left

    def _exchange(self, communicator: Communicator, mesh: Mesh, shares: list[float]) -> tuple[_Buffer, list[float]]:
        """Complete the tree over the ranks: the sum of all leaves, and that of the ranks' ``shares``."""
        buffers, rank, world = self._buffers, communicator.rank, communicator.world_size
        assert buffers is not None
        count, chunk = self._leaves[2], buffers.capacity // world
        table = torch.tensor(shares).repeat(world, 1)
        for peer in mesh.peers:
            mesh.send(peer, table[rank])
            mesh.receive(peer, table[peer])
        held = [nodes_of(*run_of(count, world, r), count) for r in range(world)]
        mine = [value.flat.cpu().view(world, chunk) for _, value in self._sum.parts]
        scratch = iter(buffers.scratch(sum(len(held[peer]) for peer in mesh.peers), chunk))
        values = [[flat[r] for flat in mine] if r == rank else [next(scratch) for _ in held[r]] for r in range(world)]
        total = buffers.take()
        flat = total.flat if total.flat.device.type == "cpu" else torch.empty(buffers.capacity, dtype=buffers.dtype)
        sums = flat.view(world, chunk)
        nodes = [pair for r in range(world) for pair in zip(held[r], values[r], strict=True)]
        own = _Chunk(mesh, count, nodes, sum(bool(held[peer]) for peer in mesh.peers), sums[rank])
        starts = range(0, chunk, PIECE)
        for start, peer in product(starts, mesh.peers):
            for node in mine:
                mesh.send(peer, node[peer, start : start + PIECE])
            for left, value in zip(reversed(range(len(values[peer]))), values[peer], strict=True):
                mesh.receive(peer, value[start : start + PIECE], None if left else partial(own.arrived, start))
        for start, peer in product(starts, mesh.peers):
            mesh.receive(peer, sums[peer, start : start + PIECE])
        own.begin()
        mesh.run()
        if flat is not total.flat:
            total.flat.copy_(flat)
        return total, table.sum(0).tolist()


class _Chunk:
    """The part of the tree's sum that one rank completes, piece by piece, and sends to all."""

    def __init__(
        self, mesh: Mesh, leaves: int, nodes: list[tuple[Node, torch.Tensor]], sources: int, into: torch.Tensor
    ) -> None:
        """``nodes``: those of all ranks, with where their values are or will be. ``sources``: peers that send some."""
        self._mesh, self._leaves, self._nodes, self._into = mesh, leaves, nodes, into
        self._missing = dict.fromkeys(range(0, len(into), PIECE), sources)

    def begin(self) -> None:
        """Complete what waits for nobody."""
        for start, missing in self._missing.items():
            if not missing:
                self._complete(start)

    def arrived(self, start: int) -> None:
        """One more peer has sent the piece at ``start`` of all its nodes."""
        self._missing[start] -= 1
        if not self._missing[start]:
            self._complete(start)

    def _complete(self, start: int) -> None:
        tree: TreeSum[torch.Tensor] = TreeSum(self._leaves, torch.Tensor.add_)
        for node, value in self._nodes:
            tree.push(node, value[start : start + PIECE])
        piece = self._into[start : start + PIECE]
        piece.copy_(tree.root())
        for peer in self._mesh.peers:
            self._mesh.send(peer, piece)


@dataclass(slots=True, eq=False)
class _Buffer:
    """One copy of all gradients."""

    flat: torch.Tensor
    """All gradients one after the other, the loss, and zeros up to the capacity."""
    views: list[torch.Tensor]
    """The same memory in the shapes of the parameters."""


class _Buffers:
    """Copies of the gradients of a model's parameters; those that are free are used again."""

    def __init__(self, module: nn.Module) -> None:
        """Raises ``ValueError`` for parameters that are not real floating-point numbers."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if odd := [name for name, p in named if not p.is_floating_point()]:
            raise ValueError(f"job.wrap(): numerics='bitwise': parameter {odd[0]} is not of a real floating-point type")
        self._parameters = [p for _, p in named]
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters) else torch.float32
        """Of the sums; gradients of smaller types are exact in it."""
        self._numbers = sum(p.numel() for p in self._parameters)
        self.capacity = 0
        self._free: list[_Buffer] = []
        self._in_use: _Buffer | None = None
        self._scratch = torch.empty(0)

    def fit(self, world_size: int) -> None:
        """Make the buffers divide into ``world_size`` chunks."""
        capacity = -(-(self._numbers + 1) // world_size) * world_size
        if capacity != self.capacity:
            self.capacity = capacity
            self.forget()

    def forget(self) -> None:
        """Use no memory again that was allocated before."""
        self._free = []
        self._scratch = torch.empty(0)

    def take(self) -> _Buffer:
        if self._free:
            return self._free.pop()
        flat = torch.zeros(self.capacity, dtype=self.dtype, device=self._parameters[0].device)
        sizes = [p.numel() for p in self._parameters]
        parts = flat[: self._numbers].split(sizes)
        return _Buffer(flat, [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)])

    def free(self, buffer: _Buffer) -> None:
        if len(buffer.flat) == self.capacity:
            self._free.append(buffer)

    def scratch(self, count: int, length: int) -> list[torch.Tensor]:
        """``count`` tensors of ``length`` on the CPU, until the next call."""
        if len(self._scratch) != count * length:
            self._scratch = torch.empty(count * length, dtype=self.dtype)
        return list(self._scratch.view(count, length))

    def take_gradients(self, loss: torch.Tensor) -> _Buffer:
        """The gradients as they are, and the loss, in a buffer; a parameter without a gradient counts as zero."""
        buffer = self.take()
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad.to_dense())
                parameter.grad = None
        buffer.flat[self._numbers] = loss.detach()
        return buffer

    def add_gradients(self, buffer: _Buffer, loss: torch.Tensor) -> None:
        """The same additions as with a buffer from :meth:`take_gradients`, without the copy."""
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            view.add_(0.0 if parameter.grad is None else parameter.grad.to_dense())
            parameter.grad = None
        buffer.flat[self._numbers] += loss.detach()

    def set_gradients(self, buffer: _Buffer) -> float:
        """Make the buffer's content the gradients, until they are cleared. Returns the loss."""
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            parameter.grad = view.to(parameter)
        self._in_use = buffer
        return float(buffer.flat[self._numbers])

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        if self._in_use is not None:
            self.free(self._in_use)
            self._in_use = None
