"""The training state as one tree: captured from what is tracked, carried between ranks, restored.

Anything with ``state_dict`` and ``load_state_dict`` can be tracked. A tree is split into its tensors, which travel in
buckets of raw bytes, and the rest (structure, numbers, strings), which travels pickled between the ranks of one job.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils import _pytree

from elastrain.elastic.communicator import Communicator

BUCKET_BYTES = 32 * 2**20
"""Bytes sent at a time: the memory that a transfer needs beside the state itself."""


class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for a tensor in a pickled tree."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def capture(tracked: dict[str, Stateful]) -> dict[str, Any]:
    """The present state by name. Tensors are the live ones, not copies."""
    return {name: obj.state_dict() for name, obj in tracked.items()}


def restore(tracked: dict[str, Stateful], state: dict[str, Any]) -> None:
    """Load ``state`` into the tracked objects.

    Raises ``ValueError`` naming what one side has and the other lacks: a silently skipped optimizer would train on.
    """
    if missing := sorted(tracked.keys() - state.keys()):
        raise ValueError(f"the saved state has no entry for tracked {', '.join(missing)}; it has {sorted(state)}")
    if surplus := sorted(state.keys() - tracked.keys()):
        raise ValueError(f"the saved state has {', '.join(surplus)}, which this script does not track (job.track)")
    for name, obj in tracked.items():
        obj.load_state_dict(state[name])


def transfer(tree: Callable[[], Any], communicator: Communicator, source: int, receivers: Sequence[int]) -> Any:
    """Bring the tree of rank ``source`` to ``receivers``, and return it there; called by all ranks alike.

    One receiver is served directly, and the other ranks go on at once; several are served by a broadcast, in which all
    ranks take part. Returns None on ranks that receive nothing. Raises ``GenerationBroken``.
    """
    rank = communicator.rank
    if len(receivers) == 1:
        receiver = receivers[0]
        if rank == source:
            _send(tree(), lambda t: communicator.send(t, receiver))
        elif rank == receiver:
            return _receive(lambda t: communicator.receive(t, source))
        return None
    if rank == source:
        _send(tree(), lambda t: communicator.broadcast(t, source))
        return None
    received = _receive(lambda t: communicator.broadcast(t, source))
    return received if rank in receivers else None


def _send(tree: Any, give: Callable[[torch.Tensor], None]) -> None:
    tensors = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    header = pickle.dumps(_pytree.tree_map(_slot, tree))
    give(torch.tensor([len(header)]))
    give(torch.frombuffer(bytearray(header), dtype=torch.uint8))
    buffer = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
    for bucket in _buckets([t.numel() * t.element_size() for t in tensors]):
        filled = 0
        for index, start, length in bucket:
            buffer[filled : filled + length] = _bytes(tensors[index].detach().cpu())[start : start + length]
            filled += length
        give(buffer[:filled])


def _receive(take: Callable[[torch.Tensor], None]) -> Any:
    """A tree from :func:`_send`; tensors on the CPU."""
    size = torch.zeros(1, dtype=torch.int64)
    take(size)
    header = torch.empty(int(size), dtype=torch.uint8)
    take(header)
    tree = pickle.loads(header.numpy().tobytes())  # noqa: S301 - from a rank of the same job
    tree = _pytree.tree_map(lambda x: torch.empty(x.shape, dtype=x.dtype) if isinstance(x, _Slot) else x, tree)
    flat = [_bytes(leaf) for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    buffer = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
    for bucket in _buckets([len(t) for t in flat]):
        view = buffer[: sum(length for _, _, length in bucket)]
        take(view)
        taken = 0
        for index, start, length in bucket:
            flat[index][start : start + length] = view[taken : taken + length]
            taken += length
    return tree


def to_cpu_copy(tree: Any) -> Any:
    """A copy whose tensors are on the CPU and share no memory with ``tree``."""
    return _pytree.tree_map(lambda x: x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x, tree)


def _slot(leaf: Any) -> Any:
    return _Slot(leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else leaf


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a flat uint8 view (a copy if it is not contiguous)."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _buckets(sizes: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Cut tensors of ``sizes`` bytes into buckets of at most ``BUCKET_BYTES``: lists of (tensor, start, length)."""
    bucket: list[tuple[int, int, int]] = []
    room = BUCKET_BYTES
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            length = min(size - start, room)
            bucket.append((index, start, length))
            start, room = start + length, room - length
            if room == 0:
                yield bucket
                bucket, room = [], BUCKET_BYTES
    if bucket:
        yield bucket
