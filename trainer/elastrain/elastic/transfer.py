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
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic import channel, digest
from elastrain.elastic.communicator import Communicator
from elastrain.elastic.state import Slot, is_dense, raw_bytes, slot

PIECE_BYTES = 8 * 2**20
"""Bytes of one piece, and so the memory that a connection needs beside the state itself (for packed tensors, and those
that are copied from a GPU)."""
SMALL_BYTES = 256 * 2**10
"""Tensors below this size are packed."""
_LENGTH_BYTES = 8


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
        with communicator.guard():
            _give(tree(), communicator, sources, receivers)
    elif rank in receivers:
        with communicator.guard():
            return _take(tree() if reuse else None, communicator, sources, receivers.index(rank))
    return None


def _give(tree: Any, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int]) -> None:
    rank = communicator.rank
    header = pickle.dumps(_pytree.tree_map(slot, tree)) if rank == sources[0] else b""
    tensors = [leaf.detach() for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    pieces = cut([t.nbytes for t in tensors])

    def serve(place: int, connection: socket.socket) -> None:
        if header:
            connection.sendall(len(header).to_bytes(_LENGTH_BYTES, "big") + header)
        sums = []
        for piece, source in zip(pieces, share(pieces, sources, place), strict=True):
            if source == rank:
                data = _pack(tensors, piece) if piece.packed else _slice(tensors, piece).cpu()
                connection.sendall(data.numpy())
                sums.append(digest.of_bytes(data))
        connection.sendall(b"".join(map(_encode, sums)))

    connections = communicator.accept(receivers, channel.Purpose.STATE)
    _at_once(partial(serve, place, connections[receiver]) for place, receiver in enumerate(receivers))


def _take(mine: Any, communicator: Communicator, sources: Sequence[int], place: int) -> Any:
    """A tree from :func:`_give`; tensors on the CPU, those of ``mine`` where they fit."""
    connections = [communicator.connect(source, channel.Purpose.STATE) for source in sources]
    length = int.from_bytes(channel.receive(connections[0], bytearray(_LENGTH_BYTES)), "big")
    header = channel.receive(connections[0], bytearray(length))
    tree = _allocate(pickle.loads(header), mine)  # noqa: S301 - from a rank of the same job
    tensors = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    pieces = cut([t.nbytes for t in tensors])
    givers = share(pieces, sources, place)

    def fetch(source: int, connection: socket.socket) -> None:
        sums = bytearray()
        for piece, giver in zip(pieces, givers, strict=True):
            if giver == source:
                data = torch.empty(piece.nbytes, dtype=torch.uint8) if piece.packed else _slice(tensors, piece)
                channel.receive(connection, data.numpy())
                sums += _encode(digest.of_bytes(data))
                _unpack(tensors, piece, data)
        if channel.receive(connection, bytearray(len(sums))) != sums:
            communicator.fail(f"state from rank {source} arrived damaged: checksums differ")

    _at_once(partial(fetch, *pair) for pair in zip(sources, connections, strict=True))
    return tree


def _at_once(tasks: Iterable[Callable[[], None]]) -> None:
    """Do all, each in a thread of its own but for the first. Raises what the first one raised that failed.

    If one fails, the others are sure to end: it was because the connections ended, or is followed by it.
    """
    first, *others = tasks
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except (OSError, RuntimeError) as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(task,), name="elastrain-transfer") for task in others]
    for thread in threads:
        thread.start()
    run(first)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _encode(checksum: int) -> bytes:
    return checksum.to_bytes(8, "big")


def _unpack(tensors: Sequence[torch.Tensor], piece: Piece, data: torch.Tensor) -> None:
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
