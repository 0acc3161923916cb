"""State on its way between ranks.

A tree is split into its tensors, which travel as raw bytes, and the rest (structure, numbers, strings), which travels
pickled between the ranks of one job. Every rank that holds the newest state sends a share of it to every rank that does
not, all at the same time. Large tensors are cut into pieces that go straight from the memory of the sender into that of
the receiver; small ones are packed, and come from one rank only, since they may differ between replicas (statistics of
a batch normalisation do). The receiver compares a checksum of each piece with the sender's: a bit that was turned on
the way would else train on for ever.

Givers train on meanwhile (:class:`Gift`): nothing changes the large tensors of the state but the optimizer's step.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic.comm import channel, digest
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.state.capture import Slot, is_dense, raw_bytes, slot
from elastrain.elastic.state.staging import Stage, apart, settle

PIECE_BYTES = 8 * 2**20
"""Bytes of one piece, and so the host memory that a connection needs beside the state itself (for packed tensors, and
those that lie on a GPU)."""
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


def share(count: int, sources: Sequence[int], receiver: int) -> list[int]:
    """For each of so many things, the rank of ``sources`` that gives it to the ``receiver``-th of those that receive.
    Pure. They go round, and begin elsewhere for each receiver."""
    return [sources[(i + receiver) % len(sources)] for i in range(count)]


class Small:
    """All of a tree but its large tensors, as it is now: structure, numbers, strings, and small tensors as copies."""

    def __init__(self, tree: Any) -> None:
        self._header = pickle.dumps(_pytree.tree_map(slot, tree))
        tensors = tensors_of(tree)
        settle(tensors)
        self._packs = [_pack(tensors, piece) for piece in cut([t.nbytes for t in tensors]) if piece.packed]

    def send(self, connection: socket.socket) -> None:
        """To one that calls :func:`receive_small`. Raises ``OSError``."""
        connection.sendall(len(self._header).to_bytes(_LENGTH_BYTES, "big") + self._header)
        for data in self._packs:
            connection.sendall(data.numpy())
        connection.sendall(b"".join(encode(digest.of_bytes(data)) for data in self._packs))


def receive_small(mine: Any, communicator: Communicator, source: int, connection: socket.socket) -> Any:
    """The tree of :class:`Small`, in which large tensors have no content yet: those of ``mine`` where they fit.

    Raises ``OSError``, and ``GenerationBroken`` if it arrived damaged.
    """
    length = int.from_bytes(channel.receive(connection, bytearray(_LENGTH_BYTES)), "big")
    header = channel.receive(connection, bytearray(length))
    tree = _allocate(pickle.loads(header), mine)  # noqa: S301 - from a rank of the same job
    tensors = tensors_of(tree)
    sums = bytearray()
    for piece in cut([t.nbytes for t in tensors]):
        if piece.packed:
            data = torch.empty(piece.nbytes, dtype=torch.uint8)
            channel.receive(connection, data.numpy())
            sums += encode(digest.of_bytes(data))
            _unpack(tensors, piece, data)
    compare(sums, communicator, source, connection)
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Its tensors, in an order that is the same for every rank's tree."""
    return [leaf.detach() for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def encode(checksum: int) -> bytes:
    return checksum.to_bytes(8, "big")


def compare(sums: bytearray, communicator: Communicator, source: int, connection: socket.socket) -> None:
    """``sums``: the encoded checksums of what has arrived; the sender's follow. Raises as :func:`receive_small`."""
    if channel.receive(connection, bytearray(len(sums))) != sums:
        communicator.fail(f"state from rank {source} arrived damaged: checksums differ")


class Gift:
    """A share of this rank's state on its way to those that need it, in a thread of its own."""

    def __init__(self, tree: Any, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Every rank of ``sources`` makes one, of an equal ``tree``; each of ``receivers`` calls :func:`receive`.

        Tensors of ``SMALL_BYTES`` and more must not change until :meth:`pause` has returned; smaller ones, and all that
        is no tensor, are sent as they are now.
        """
        self.ended_at: float | None = None
        """Monotonic time; None while it is on its way."""
        self._communicator, self._sources, self._receivers = communicator, sources, receivers
        self._small = Small(tree) if communicator.rank == sources[0] else None
        self._tensors = tensors_of(tree)
        settle(self._tensors)
        self._pieces = _large(self._tensors)
        self._thread = threading.Thread(target=self._run, name="elastrain-gift")
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has arrived, or cannot."""
        return not self._thread.is_alive()

    def pause(self) -> float:
        """Return when it has arrived, or cannot: then the generation is broken. An abort ends it at once.

        Returns the monotonic time at which it had."""
        self._thread.join()
        assert self.ended_at is not None
        return self.ended_at

    def finish(self, _tree: Callable[[], Any]) -> None:
        """As :meth:`pause`."""
        self.pause()

    def end(self) -> None:
        """Of a communicator that was aborted."""
        self.pause()

    def _run(self) -> None:
        with contextlib.suppress(GenerationBroken), self._communicator.guard():
            connections = self._communicator.accept(self._receivers, channel.Purpose.STATE)
            _at_once(
                partial(self._serve, place, connections[receiver]) for place, receiver in enumerate(self._receivers)
            )
        self.ended_at = time.monotonic()

    def _serve(self, place: int, connection: socket.socket) -> None:
        if self._small is not None:
            self._small.send(connection)
        sums = []
        stage = Stage(PIECE_BYTES)
        givers = share(len(self._pieces), self._sources, place)
        with apart(self._tensors):
            for piece, giver in zip(self._pieces, givers, strict=True):
                if giver == self._communicator.rank:
                    data = stage.to_host(_slice(self._tensors, piece))
                    connection.sendall(data.numpy())
                    sums.append(digest.of_bytes(data))
        connection.sendall(b"".join(map(encode, sums)))


def receive(mine: Any, communicator: Communicator, sources: Sequence[int], receivers: Sequence[int]) -> Any:
    """The tree that ``sources`` give; its tensors are those of ``mine`` where they fit.

    ``mine``: a tree whose tensors may be overwritten, so that most of the state arrives where it is needed, or None
    where this rank's own state is still worth something. Raises ``GenerationBroken``, also for a piece that arrived
    damaged.
    """
    with communicator.guard():
        return _take(mine, communicator, sources, receivers.index(communicator.rank))


def _take(mine: Any, communicator: Communicator, sources: Sequence[int], place: int) -> Any:
    connections = [communicator.connect(source, channel.Purpose.STATE) for source in sources]
    tree = receive_small(mine, communicator, sources[0], connections[0])
    tensors = tensors_of(tree)
    settle(tensors)
    pieces = _large(tensors)
    givers = share(len(pieces), sources, place)

    def fetch(source: int, connection: socket.socket) -> None:
        sums = bytearray()
        stage = Stage(PIECE_BYTES)
        with apart(tensors):
            for piece, giver in zip(pieces, givers, strict=True):
                if giver == source:
                    home = _slice(tensors, piece)
                    data = stage.begin(home)
                    channel.receive(connection, data.numpy())
                    sums += encode(digest.of_bytes(data))
                    stage.finish(data, home)
        compare(sums, communicator, source, connection)

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


def _large(tensors: Sequence[torch.Tensor]) -> list[Piece]:
    return [piece for piece in cut([t.nbytes for t in tensors]) if not piece.packed]


def _unpack(tensors: Sequence[torch.Tensor], piece: Piece, data: torch.Tensor) -> None:
    chunks = data.split([length for _, _, length in piece.parts])
    for (index, _, _), chunk in zip(piece.parts, chunks, strict=True):
        raw_bytes(tensors[index]).copy_(chunk)


def _allocate(header: Any, mine: Any) -> Any:
    """Tensors for the slots of ``header``: those of the tree ``mine`` at the same place if they fit, else new ones.

    New ones lie where the sender's do, if this rank has such a device; but on the host where ``mine`` is to be kept,
    as two states need not fit on a device.
    """
    leaves, spec = _pytree.tree_flatten_with_path(header)
    own = dict(_pytree.tree_flatten_with_path(mine)[0])
    kept = mine is None
    return _pytree.tree_unflatten([_tensor_for(leaf, own.get(path), kept) for path, leaf in leaves], spec)


def _tensor_for(leaf: Any, own: Any, kept: bool) -> Any:
    if not isinstance(leaf, Slot):
        return leaf
    if isinstance(own, torch.Tensor) and is_dense(own) and slot(own) == leaf:
        return own.detach()
    device = "cuda" if leaf.device == "cuda" and not kept and torch.cuda.is_available() else "cpu"
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=device)


def _slice(tensors: Sequence[torch.Tensor], piece: Piece) -> torch.Tensor:
    ((index, start, length),) = piece.parts
    return raw_bytes(tensors[index])[start : start + length]


def _pack(tensors: Sequence[torch.Tensor], piece: Piece) -> torch.Tensor:
    return torch.cat([raw_bytes(tensors[index]).cpu() for index, _, _ in piece.parts])
