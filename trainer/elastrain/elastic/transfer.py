"""State on its way between ranks.

A tree is split into its tensors, which travel as raw bytes, and the rest (structure, numbers, strings), which travels
pickled between the ranks of one job. Every rank that holds the newest state sends a share of it to every rank that does
not, all at the same time. Large tensors are cut into pieces that go straight from the memory of the sender into that of
the receiver; small ones are packed, and come from one rank only, since they may differ between replicas (statistics of
a batch normalisation do). The receiver compares a checksum of each piece with the sender's: a bit that was turned on
the way would else train on for ever.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic import digest
from elastrain.elastic.communicator import Communicator
from elastrain.elastic.state import Slot, is_dense, raw_bytes, slot

PIECE_BYTES = 8 * 2**20
"""Bytes of one message."""
IN_FLIGHT = 4
"""Messages under way from or to one rank. Times ``PIECE_BYTES`` it bounds the memory that a transfer needs beside the
state itself (packed tensors, and those that are copied from a GPU)."""
SMALL_BYTES = 256 * 2**10
"""Tensors below this size are packed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: parts of tensors as (index of the tensor, first byte, bytes)."""

    parts: tuple[tuple[int, int, int], ...]
    packed: bool

    @property
    def nbytes(self) -> int:
        return sum(length for _, _, length in self.parts)


def cut(sizes: Sequence[int]) -> list[Piece]:
    """Cut tensors of ``sizes`` bytes into pieces of at most ``PIECE_BYTES``; the packed ones come first. Pure."""
    packed: list[Piece] = []
    parts: list[tuple[int, int, int]] = []
    room = PIECE_BYTES
    for index, size in enumerate(sizes):
        if not 0 < size < SMALL_BYTES:
            continue
        if size > room:
            packed.append(Piece(tuple(parts), packed=True))
            parts, room = [], PIECE_BYTES
        parts.append((index, 0, size))
        room -= size
    if parts:
        packed.append(Piece(tuple(parts), packed=True))
    large = [
        Piece(((index, start, min(PIECE_BYTES, size - start)),), packed=False)
        for index, size in enumerate(sizes)
        if size >= SMALL_BYTES
        for start in range(0, size, PIECE_BYTES)
    ]
    return packed + large


def share(pieces: Sequence[Piece], sources: Sequence[int], receiver: int) -> list[int]:
    """For each piece, the rank of ``sources`` that gives it to the ``receiver``-th of those that receive. Pure.

    Packed ones come from the first; the others go round, and begin elsewhere for each receiver.
    """
    return [sources[0] if p.packed else sources[(i + receiver) % len(sources)] for i, p in enumerate(pieces)]


def move(
    tree: Callable[[], Any], communicator: Communicator, sources: Sequence[int], receivers: Sequence[int], reuse: bool
) -> Any:
    """Bring the tree of the ranks ``sources`` (equal ones) to ``receivers``, and return it there; called by all alike.

    ``reuse``: the receiver's own tensors may be overwritten, so that most of the state arrives where it is needed; to
    be False where the receiver's state is still worth something. The sources return None as soon as their shares are
    sent, all others at once. Raises ``GenerationBroken``, also for a piece that arrived damaged.
    """
    rank = communicator.rank
    if rank in sources:
        _give(tree(), communicator, sources, receivers)
    elif rank in receivers:
        return _take(tree() if reuse else None, communicator, sources, receivers.index(rank))
    return None


def _give(tree: Any, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int]) -> None:
    if communicator.rank == sources[0]:
        header = torch.frombuffer(bytearray(pickle.dumps(_pytree.tree_map(slot, tree))), dtype=torch.uint8)
        for receiver in receivers:
            communicator.send(torch.tensor([len(header)]), receiver)
            communicator.send(header, receiver)
    tensors = [leaf.detach() for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    pieces = cut([t.nbytes for t in tensors])
    givers = [share(pieces, sources, j) for j in range(len(receivers))]
    flow = _Flow()
    sums: dict[int, list[int]] = {receiver: [] for receiver in receivers}
    for i, piece in enumerate(pieces):
        mine = [receiver for j, receiver in enumerate(receivers) if givers[j][i] == communicator.rank]
        if not mine:
            continue
        data = _pack(tensors, piece) if piece.packed else _slice(tensors, piece).cpu()
        checksum = digest.of_bytes(data)
        for receiver in mine:
            sums[receiver].append(checksum)
            flow.add(communicator.start_send(data, receiver))
    flow.finish()
    for receiver in receivers:
        communicator.send(torch.tensor([len(sums[receiver]), *sums[receiver]]), receiver)


def _take(mine: Any, communicator: Communicator, sources: Sequence[int], place: int) -> Any:
    """A tree from :func:`_give`; tensors on the CPU, those of ``mine`` where they fit."""
    size = torch.zeros(1, dtype=torch.int64)
    communicator.receive(size, sources[0])
    header = torch.empty(int(size), dtype=torch.uint8)
    communicator.receive(header, sources[0])
    tree = _allocate(pickle.loads(header.numpy().tobytes()), mine)  # noqa: S301 - from a rank of the same job
    tensors = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    pieces = cut([t.nbytes for t in tensors])
    givers = share(pieces, sources, place)
    flow = _Flow()
    sums: dict[int, list[int]] = {source: [] for source in sources}
    for piece, source in zip(pieces, givers, strict=True):
        data = torch.empty(piece.nbytes, dtype=torch.uint8) if piece.packed else _slice(tensors, piece)
        flow.add(communicator.start_receive(data, source), partial(_arrived, tensors, piece, data, sums[source]))
    flow.finish()
    for source in sources:
        told = torch.empty(1 + len(sums[source]), dtype=torch.int64)
        communicator.receive(told, source)
        if told.tolist() != [len(sums[source]), *sums[source]]:
            communicator.fail(f"state from rank {source} arrived damaged: checksums differ")
    return tree


class _Flow:
    """Messages under way, at most ``IN_FLIGHT`` of them; they end in the order in which they began."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Callable[[], None], Callable[[], None] | None]] = deque()

    def add(self, wait: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        self._under_way.append((wait, then))
        while len(self._under_way) >= IN_FLIGHT:
            self._end_first()

    def finish(self) -> None:
        while self._under_way:
            self._end_first()

    def _end_first(self) -> None:
        wait, then = self._under_way.popleft()
        wait()
        if then is not None:
            then()


def _arrived(tensors: Sequence[torch.Tensor], piece: Piece, data: torch.Tensor, sums: list[int]) -> None:
    sums.append(digest.of_bytes(data))
    if piece.packed:
        chunks = data.split([length for _, _, length in piece.parts])
        for (index, _, _), chunk in zip(piece.parts, chunks, strict=True):
            raw_bytes(tensors[index]).copy_(chunk)


def _allocate(header: Any, mine: Any) -> Any:
    """Tensors for the slots of ``header``: those of the tree ``mine`` at the same place if they fit, else new ones."""
    leaves, spec = _pytree.tree_flatten_with_path(header)
    own = dict(_pytree.tree_flatten_with_path(mine)[0])
    return _pytree.tree_unflatten([_tensor_for(leaf, own.get(path)) for path, leaf in leaves], spec)


def _tensor_for(leaf: Any, own: Any) -> Any:
    if not isinstance(leaf, Slot):
        return leaf
    if isinstance(own, torch.Tensor) and own.device.type == "cpu" and is_dense(own) and slot(own) == leaf:
        return own.detach()
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype)


def _slice(tensors: Sequence[torch.Tensor], piece: Piece) -> torch.Tensor:
    ((index, start, length),) = piece.parts
    return raw_bytes(tensors[index])[start : start + length]


def _pack(tensors: Sequence[torch.Tensor], piece: Piece) -> torch.Tensor:
    return torch.cat([raw_bytes(tensors[index]).cpu() for index, _, _ in piece.parts])
