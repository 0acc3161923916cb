"""The data of a training state on a connection between two ranks.

A tree is split into its large tensors, which travel as raw bytes, and the rest: structure, numbers, strings
(:mod:`elastrain.elastic.encoding`) and small tensors, which are packed and come from one rank, since they may differ
between replicas (statistics of a batch normalisation do). Large tensors go piece by piece straight from the memory of
the sender into the memory of the receiver. The receiver compares a checksum of each piece with the sender's: a bit that
was flipped on the way would otherwise stay in the model.

From and to a device, each connection uses one page-locked buffer with the size of a piece. The device needs no memory
beside the state, and the checksum is computed on the host. Tensors of the host are used in place.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.stock.captures import relaxed
from elastrain.elastic.comm.transport import page_locked
from elastrain.elastic.encoding import Malformed, NotEncodable, decode, encode
from elastrain.elastic.encoding.leaves import is_dense, raw_bytes
from elastrain.elastic.state import digest
from elastrain.elastic.state.capture import Slot, slot
from elastrain.elastic.torch_private import pytree

PIECE_BYTES = 8 * 2**20
"""Bytes of one piece, and so the host memory that a connection needs beside the state itself (for packed tensors and
tensors on a GPU)."""
RESERVED = 4
"""Page-locked buffers of a piece that a rank on a device reserves: one for each of so many connections."""
SMALL_BYTES = 256 * 2**10
"""Tensors below this size are packed."""
MAX_HEADER = 2**30
"""Bytes of a tree without its tensors."""
PORTION, CLOSING, END, ASK = b"P", b"C", b"E", b"A"
"""What follows on a connection between :class:`~elastrain.elastic.state.sender.StateSender` and its receiver."""
_LENGTH_BYTES = 8


def pack_small(sizes: Sequence[int]) -> list[list[int]]:
    """Group the small ones of tensors with ``sizes`` bytes into packs of at most ``PIECE_BYTES``, by number. Pure."""
    small = [number for number, size in enumerate(sizes) if 0 < size < SMALL_BYTES]
    return [[small[n] for n in pack] for pack in buckets([sizes[number] for number in small], PIECE_BYTES)]


def buckets(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of tensors of these ``sizes``, in order, in groups of at most ``most`` bytes. Pure."""
    found: list[list[int]] = []
    room = -1
    for number, size in enumerate(sizes):
        if not found or size > room:
            found.append([])
            room = most
        found[-1].append(number)
        room -= size
    return found


def header_of(tree: Any) -> bytes:
    """A tree without its tensors, as it travels.

    Raises :class:`elastrain.elastic.encoding.NotEncodable` naming an entry that cannot travel, and ``ValueError`` if it
    is too large.
    """
    try:
        header = encode(pytree.tree_map(slot, tree), "the state")
    except NotEncodable as e:
        raise NotEncodable(
            f"job.track: {e}: let state_dict() return tensors, plain values and containers of them"
        ) from None
    if len(header) > MAX_HEADER:
        raise ValueError(f"the tracked objects' state has {len(header)} bytes beside its tensors; at most {MAX_HEADER}")
    return header


class SmallState:
    """A tree without its large tensors, as it is now: structure, numbers, strings, and copies of small tensors."""

    def __init__(self, tree: Any) -> None:
        """Raises as :func:`header_of`."""
        self._header = header_of(tree)
        tensors = tensors_of(tree)
        settle(tensors)
        self._packs = [_pack([tensors[number] for number in pack]) for pack in pack_small(_sizes(tensors))]

    def send(self, connection: socket.socket) -> None:
        """Send it to a rank that calls :func:`receive_small`. Raises ``OSError``."""
        connection.sendall(len(self._header).to_bytes(_LENGTH_BYTES, "big") + self._header)
        for data in self._packs:
            connection.sendall(data.numpy())
        connection.sendall(b"".join(_checksum(data) for data in self._packs))


def receive_small(mine: Any, communicator: Communicator, source: int, connection: socket.socket) -> Any:
    """The tree of a :class:`SmallState`. Its large tensors have no content yet; they are those of ``mine`` if they fit.

    Raises ``OSError``, and ``GenerationBroken`` if the tree arrived damaged.
    """
    try:
        header = decode(_receive_header(connection))
    except Malformed as e:
        communicator.fail(f"state from rank {source} arrived damaged: {e}")
    tree = _allocate(header, mine)
    tensors = tensors_of(tree)
    sums = bytearray()
    for pack in pack_small(_sizes(tensors)):
        parts = [tensors[number] for number in pack]
        data = torch.empty(sum(_sizes(parts)), dtype=torch.uint8)
        channel.receive(connection, data.numpy())
        sums += _checksum(data)
        for tensor, chunk in zip(parts, data.split(_sizes(parts)), strict=True):
            raw_bytes(tensor).copy_(chunk)
    compare(sums, communicator, source, connection)
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree, in an order that is the same for every rank's tree."""
    return [leaf.detach() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _receive_header(connection: socket.socket) -> bytearray:
    """Its memory grows with what arrives. Raises ``OSError``, and :class:`Malformed` if it is too long."""
    length = int.from_bytes(channel.receive(connection, bytearray(_LENGTH_BYTES)), "big")
    if length > MAX_HEADER:
        raise Malformed(f"a header of {length} bytes")
    header = bytearray()
    while len(header) < length:
        header += channel.receive(connection, bytearray(min(length - len(header), PIECE_BYTES)))
    return header


def compare(sums: bytearray, communicator: Communicator, source: int, connection: socket.socket) -> None:
    """Compare ``sums``, the encoded checksums of received data, with the sender's, which follow on the connection.

    Raises as :func:`receive_small`.
    """
    if channel.receive(connection, bytearray(len(sums))) != sums:
        communicator.fail(f"state from rank {source} arrived damaged: checksums differ")


# -- large tensors -----------------------------------------------------------------------------------------------------
def send_tensors(
    tensors: Sequence[torch.Tensor],
    connection: socket.socket,
    stage: Stage,
    sent: Callable[[int], object] = lambda _nbytes: None,
) -> None:
    """Send their content to a rank that calls :func:`receive_tensors`; ``sent(bytes)`` follows each piece.

    Raises ``OSError``.
    """
    sums = bytearray()
    for tensor in tensors:
        for piece in raw_bytes(tensor).split(PIECE_BYTES):
            data = stage.to_host(piece)
            connection.sendall(data.numpy())
            sums += _checksum(data)
            sent(data.nbytes)
    connection.sendall(sums)


def receive_tensors(
    tensors: Sequence[torch.Tensor], communicator: Communicator, source: int, connection: socket.socket, stage: Stage
) -> None:
    """Receive their content, in place. Raises as :func:`receive_small`."""
    sums = bytearray()
    for tensor in tensors:
        for home in raw_bytes(tensor).split(PIECE_BYTES):
            data = stage.begin(home)
            channel.receive(connection, data.numpy())
            sums += _checksum(data)
            stage.finish(data, home)
    compare(sums, communicator, source, connection)


def _checksum(data: torch.Tensor) -> bytes:
    return digest.of_bytes(data).to_bytes(8, "big")


def _allocate(header: Any, mine: Any) -> Any:
    """Tensors for the slots of ``header``: those at the same place of the tree ``mine`` if they fit, else new ones.

    New ones lie on the same type of device as the sender's, if this rank has one. They lie on the host if ``mine`` is
    None: two states need not fit on a device.
    """
    leaves, spec = pytree.tree_flatten_with_path(header)
    own = dict(pytree.tree_flatten_with_path(mine)[0])
    kept = mine is None
    return pytree.tree_unflatten([_tensor_for(leaf, own.get(path), kept) for path, leaf in leaves], spec)


def _tensor_for(leaf: Any, own: Any, kept: bool) -> Any:
    if not isinstance(leaf, Slot):
        return leaf
    if isinstance(own, torch.Tensor) and is_dense(own) and slot(own) == leaf:
        return own.detach()
    device = "cuda" if leaf.device == "cuda" and not kept and torch.cuda.is_available() else "cpu"
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=device)


def _sizes(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.nbytes for tensor in tensors]


def _pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([raw_bytes(tensor).cpu() for tensor in tensors])


# -- between a device and the host -------------------------------------------------------------------------------------
class Stage:
    """The staging buffer of one connection; for one thread and one piece at a time."""

    def __init__(self, size: int) -> None:
        """``size``: bytes of the largest piece."""
        self._size = size
        self._buffer: torch.Tensor | None = None

    def to_host(self, piece: torch.Tensor) -> torch.Tensor:
        """The bytes of ``piece`` in the host's memory, until the next call."""
        if digest.on_host(piece):
            return piece
        buffer = self._buffer_for(piece)
        buffer.copy_(piece)  # returns when it is done
        return buffer

    def begin(self, piece: torch.Tensor) -> torch.Tensor:
        """Host memory to receive the new bytes of ``piece`` into; :meth:`finish` copies them to ``piece``."""
        return piece if digest.on_host(piece) else self._buffer_for(piece)

    def finish(self, received: torch.Tensor, piece: torch.Tensor) -> None:
        """Copy ``received``, from :meth:`begin`, to ``piece``, unless it is ``piece`` itself."""
        if received is not piece:
            piece.copy_(received)  # returns when it is done

    def _buffer_for(self, piece: torch.Tensor) -> torch.Tensor:
        if self._buffer is None:
            self._buffer = page_locked(self._size, piece.device)
        return self._buffer[: piece.numel()]


def reserve(device: torch.device) -> None:
    """The state will be received into tensors of ``device``, or sent from them: have torch keep page-locked buffers.

    CUDA may hold an allocation of page-locked memory back until the device is idle. A learner's device waits for the
    other ranks in its sums, while the learner is to receive its state.
    """
    if device.type != "cpu":
        _ = [page_locked(PIECE_BYTES, device) for _ in range(RESERVED)]  # freed into torch's cache


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait for all work that this thread has queued for the tensors' devices.

    Call it before copies made :func:`apart`, which are not ordered after that work. Work that other threads have queued
    is not waited for.
    """
    for device in {t.device for t in tensors if t.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def apart(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """A context in which this thread copies the tensors on a stream of its own.

    On the default stream each copy would wait for the whole step that the training thread has queued.
    """
    device = next((t.device for t in tensors if t.is_cuda), None)
    if device is None:
        yield
        return
    with relaxed(), torch.cuda.stream(torch.cuda.Stream(device)):
        yield
