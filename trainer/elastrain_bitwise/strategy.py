"""``numerics="bitwise"``: the same bits from any history of rescales.

A global batch is cut into a fixed number of logical micro-batches. Each is computed alone, on the rank that has it. The
gradients are added in the order of a fixed tree (:mod:`elastrain_bitwise.summation_tree`). The ranks
complete the tree in chunks: rank ``c`` receives chunk ``c`` of every node that remains on a rank, adds them in the
tree's order, and sends the sum to all (a reduce-scatter and an all-gather with a fixed order of additions). Both travel
in pieces over the ranks' own connections (:mod:`elastrain.elastic.comm.mesh`): a piece is added and returned while the
next ones travel, and a lost peer ends the step at once.

The cost: nothing overlaps with backward, each micro-batch is a backward of its own, and a rank keeps up to
``2 * log2(micro_batches)`` copies of the gradients. Ranks beyond the number of micro-batches compute nothing that
counts.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from elastrain.api.settings import Transport
from elastrain.data.order import Order, Slice, run_of
from elastrain.elastic.comm.backend import Offer
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.transport import page_locked, to_host
from elastrain.elastic.strategies.strategy import ElasticModule, Strategy, refuse_sharded
from elastrain_bitwise.gradient_buffers import GradientBuffer, GradientBuffers
from elastrain_bitwise.summation_tree import Node, TreeSum, nodes_of

PIECE = 1 << 18
"""Numbers that are added and returned at a time; large enough to hide the cost of Python in between."""


def make_deterministic() -> None:
    """Select algorithms that give the same bits each time, for the whole process.

    Operations that have none then raise ``RuntimeError`` naming themselves. Call it before CUDA is used: cuBLAS reads
    the size of its workspace once, and torch refuses its calls with any other than a fixed one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it only costs time
    torch.backends.cudnn.benchmark = False  # it selects algorithms by timing them


def deterministic() -> Strategy:
    """The strategy of a process whose algorithms are so from now on."""
    make_deterministic()
    return Bitwise()


class BitwiseModule(ElasticModule):
    """Gradients stay on the rank until all of the step's micro-batches are done."""

    def offer(self, demanded: Transport) -> Offer:
        return Offer(why="numerics='bitwise' adds gradients in the host's memory")


class Bitwise(Strategy):
    """Gradients as the tree's sum."""

    def __init__(self) -> None:
        self._models: list[ElasticModule] = []
        self._whole: ElasticModule | None = None
        self._buffers: GradientBuffers | None = None
        self._sum: TreeSum[GradientBuffer] | None = None
        """Of the step under way; None before its first micro-batch."""

    def check(self, order: Order) -> None:
        if order.micro_batches is None:
            raise ValueError(
                "job.dataloader(): numerics='bitwise' needs micro_batches=…, the number of micro-batches that each "
                "global batch is cut into at any world size. It is part of the result: keep it for the life of the "
                "job, and no smaller than the largest number of ranks"
            )

    def wrap(self, module: nn.Module, ddp_options: dict[str, Any]) -> ElasticModule:
        refuse_sharded(module)
        if ddp_options:
            raise ValueError(f"job.wrap({', '.join(ddp_options)}=…): numerics='bitwise' has no options of DDP")
        if norms := [name for name, m in module.named_modules() if isinstance(m, nn.SyncBatchNorm)]:
            raise ValueError(f"job.wrap(): numerics='bitwise': {norms[0]} is a SyncBatchNorm; use GroupNorm")
        model = BitwiseModule(module)
        self._models.append(model)
        if len(self._models) == 1:
            self._whole = model
        else:
            self._whole = BitwiseModule(nn.ModuleList(m.module for m in self._models))
        self._buffers = GradientBuffers(self._whole.module)
        return model

    def whole(self) -> ElasticModule:
        assert self._whole is not None
        return self._whole

    def several_backwards(self) -> ElasticModule:
        raise ValueError(
            "numerics='bitwise': several backwards in a loop body: the body runs for one micro-batch after the other, "
            "and an update in between would reach only some of them; use one job.backward() for each batch, or "
            "numerics='exact'"
        )

    def check_warm_up(self, changed_buffers: list[str]) -> None:
        if changed_buffers:
            raise RuntimeError(
                f"numerics='bitwise': forward changes the model's buffers {', '.join(changed_buffers[:3])}. Running "
                "statistics, as BatchNorm's, depend on the samples of each rank; use track_running_stats=False, "
                "GroupNorm or LayerNorm"
            )

    def begin_step(self) -> None:
        self._release()

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
        buffers = self._buffers
        assert buffers is not None
        if self._sum is None:
            buffers.clear_gradients()
            buffers.follow()
        buffers.fit(communicator.world_size)
        tree = self._sum = self._sum or TreeSum(part.leaves, self._add)
        (loss * part.weight).backward(retain_graph=retain_graph)
        if part.indices:  # a stand-in is no leaf
            self._push_leaf(tree, part.leaf, unscaled.detach() * part.weight)
        if not last:
            return
        if communicator.world_size == 1:
            total = tree.root()
            tree.parts.clear()
        else:
            try:
                with communicator.exchange(buffers.nbytes) as mesh:
                    total = self._exchange(communicator, mesh, tree, part)
            except GenerationBroken:
                return  # the caller sees from the communicator that the step is discarded
        self._release()
        self.loss = buffers.set_gradients(total)

    def _release(self) -> None:
        if self._sum is not None and self._buffers is not None:
            for _, value in self._sum.parts:
                self._buffers.free(value)
        self._sum = None

    def _push_leaf(self, tree: TreeSum[GradientBuffer], leaf: int, loss: torch.Tensor) -> None:
        assert self._buffers is not None
        left = tree.take_left((0, leaf))
        if left is None:
            tree.push((0, leaf), self._buffers.take_gradients(loss))
        else:
            self._buffers.add_gradients(left, loss)
            tree.push((1, leaf // 2), left)

    def _add(self, left: GradientBuffer, right: GradientBuffer) -> GradientBuffer:
        assert self._buffers is not None
        left.flat += right.flat
        self._buffers.free(right)
        return left

    def _exchange(
        self,
        communicator: Communicator,
        mesh: Mesh,
        tree: TreeSum[GradientBuffer],
        part: Slice,
    ) -> GradientBuffer:
        """Complete the tree over the ranks: returns the sum of all leaves. ``part``: of this rank."""
        leaves = part.leaves
        buffers, rank, world = self._buffers, communicator.rank, communicator.world_size
        assert buffers is not None
        chunk = buffers.capacity // world
        held = [nodes_of(*run_of(leaves, world, r, part.weights), leaves) for r in range(world)]
        mine = [to_host(value.flat).view(world, chunk) for _, value in tree.parts]
        scratch = iter(buffers.scratch(sum(len(held[peer]) for peer in mesh.peers), chunk))
        values = [[flat[r] for flat in mine] if r == rank else [next(scratch) for _ in held[r]] for r in range(world)]
        total = buffers.take()
        flat, device = total.flat, total.flat.device
        if device.type != "cpu":
            flat = page_locked(buffers.capacity, device, buffers.dtype)
        sums = flat.view(world, chunk)
        nodes = [pair for r in range(world) for pair in zip(held[r], values[r], strict=True)]
        own = _Chunk(mesh, leaves, nodes, sum(bool(held[peer]) for peer in mesh.peers), sums[rank])
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
            total.flat.copy_(flat, non_blocking=True)
        return total


class _Chunk:
    """The part of the tree's sum that one rank completes, piece by piece, and sends to all."""

    def __init__(
        self, mesh: Mesh, leaves: int, nodes: list[tuple[Node, torch.Tensor]], sources: int, into: torch.Tensor
    ) -> None:
        """``nodes``: those of all ranks, with the memory of their values. ``sources``: number of sending peers."""
        self._mesh, self._leaves, self._nodes, self._into = mesh, leaves, nodes, into
        self._missing = dict.fromkeys(range(0, len(into), PIECE), sources)

    def begin(self) -> None:
        """Complete the pieces that wait for no peer."""
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
