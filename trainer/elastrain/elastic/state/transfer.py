"""The training state on its way between ranks, whole and in one step.

A tree is split into its tensors, which travel as raw bytes, and the rest: structure, numbers, strings
(:mod:`elastrain.elastic.encoding`). Every rank with the newest state sends a part of it to every rank without, all at
the same time. Large tensors are cut into pieces that go straight from the memory of the sender into the memory of the
receiver. Small tensors are packed and come from one rank, since they may differ between replicas (statistics of a batch
normalisation do). The receiver compares a checksum of each piece with the sender's: a bit that was flipped on the way
would otherwise stay in the model.

Senders train on meanwhile (:class:`WholeStateSender`): only the optimizer's step changes the large tensors of the
state.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from elastrain.elastic.comm import channel
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.transport import first_line
from elastrain.elastic.encoding import Malformed, NotEncodable, decode, encode
from elastrain.elastic.state import digest, staging
from elastrain.elastic.state.capture import Slot, is_dense, raw_bytes, slot
from elastrain.elastic.state.slices import StateSlice, Transfer
from elastrain.elastic.state.staging import Stage, apart, settle
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
_LENGTH_BYTES = 8


def cut_large(sizes: Sequence[int]) -> list[StateSlice]:
    """Cut the large ones of tensors with ``sizes`` bytes into slices of at most ``PIECE_BYTES``. Pure."""
    return [
        StateSlice(number, start, min(PIECE_BYTES, size - start))
        for number, size in enumerate(sizes)
        if size >= SMALL_BYTES
        for start in range(0, size, PIECE_BYTES)
    ]


def pack_small(sizes: Sequence[int]) -> list[list[int]]:
    """Group the small ones of tensors with ``sizes`` bytes into packs of at most ``PIECE_BYTES``, by number. Pure."""
    packs: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if not 0 < size < SMALL_BYTES:
            continue
        if size > room:
            packs.append([])
            room = PIECE_BYTES
        packs[-1].append(number)
        room -= size
    return packs


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
        connection.sendall(b"".join(as_bytes(digest.of_bytes(data)) for data in self._packs))


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
        sums += as_bytes(digest.of_bytes(data))
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


def as_bytes(checksum: int) -> bytes:
    """A checksum as it travels."""
    return checksum.to_bytes(8, "big")


def compare(sums: bytearray, communicator: Communicator, source: int, connection: socket.socket) -> None:
    """Compare ``sums``, the encoded checksums of received data, with the sender's, which follow on the connection.

    Raises as :func:`receive_small`.
    """
    if channel.receive(connection, bytearray(len(sums))) != sums:
        communicator.fail(f"state from rank {source} arrived damaged: checksums differ")


class WholeStateSender:
    """Sends this rank's part of the state to all receivers within one step, in a thread of its own."""

    def __init__(self, tree: Any, communicator: Communicator, transfer: Transfer) -> None:
        """Every source of ``transfer`` makes one, of an equal ``tree``; each receiver calls :func:`receive`.

        Tensors of ``SMALL_BYTES`` and more must not change until :meth:`pause` has returned. Smaller ones, and all
        other values, are sent as they are now.
        """
        self.ended_at: float | None = None
        """Monotonic time of the end; None while the state is on its way."""
        self._communicator, self._transfer = communicator, transfer
        self._small = SmallState(tree) if communicator.rank == transfer.sources[0] else None
        self._tensors = tensors_of(tree)
        settle(self._tensors)
        self._slices = cut_large(_sizes(self._tensors))
        self._thread = threading.Thread(target=self._run, name="elastrain-send-state")
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the state has arrived, or cannot arrive."""
        return not self._thread.is_alive()

    def pause(self) -> float:
        """Return when the state has arrived or cannot arrive, since the generation is broken. An abort ends it at once.

        Returns the monotonic time of the end.
        """
        self._thread.join()
        assert self.ended_at is not None
        return self.ended_at

    def finish(self, _tree: Callable[[], Any]) -> None:
        """As :meth:`pause`."""
        self.pause()

    def end(self) -> None:
        """Return when nothing is sent any more, after the communicator was aborted."""
        self.pause()

    def _run(self) -> None:
        receivers = self._transfer.receivers
        with contextlib.suppress(GenerationBroken), self._communicator.guard(sends=True):
            connections = self._communicator.accept(receivers, channel.Purpose.STATE)
            tasks = (partial(self._serve, receiver, connections[receiver]) for receiver in receivers)
            _at_once(tasks, self._communicator)
        self.ended_at = time.monotonic()

    def _serve(self, receiver: int, connection: socket.socket) -> None:
        if self._small is not None:
            self._small.send(connection)
        sums = []
        stage = Stage(PIECE_BYTES)
        senders = self._transfer.senders(self._slices, receiver)
        with apart(self._tensors):
            for part, sender in zip(self._slices, senders, strict=True):
                if sender == self._communicator.rank:
                    data = stage.to_host(_bytes_of(self._tensors, part))
                    connection.sendall(data.numpy())
                    sums.append(digest.of_bytes(data))
        connection.sendall(b"".join(map(as_bytes, sums)))


def receive(mine: Any, communicator: Communicator, transfer: Transfer) -> Any:
    """The tree that the sources of ``transfer`` send; its tensors are those of ``mine`` if they fit.

    ``mine``: a tree whose tensors may be overwritten, so that most of the state arrives in place; None if this rank
    must keep its own state until it has the other. Raises ``GenerationBroken``, also for a piece that arrived damaged.
    """
    with communicator.guard():
        connections = {source: communicator.connect(source, channel.Purpose.STATE) for source in transfer.sources}
        first = transfer.sources[0]
        tree = receive_small(mine, communicator, first, connections[first])
        tensors = tensors_of(tree)
        settle(tensors)
        slices = cut_large(_sizes(tensors))
        senders = transfer.senders(slices, communicator.rank)

        def fetch(source: int, connection: socket.socket) -> None:
            sums = bytearray()
            stage = Stage(PIECE_BYTES)
            with apart(tensors):
                for part, sender in zip(slices, senders, strict=True):
                    if sender == source:
                        home = _bytes_of(tensors, part)
                        data = stage.begin(home)
                        channel.receive(connection, data.numpy())
                        sums += as_bytes(digest.of_bytes(data))
                        stage.finish(data, home)
            compare(sums, communicator, source, connection)

        _at_once((partial(fetch, *pair) for pair in connections.items()), communicator)
        return tree


def _at_once(tasks: Iterable[Callable[[], None]], communicator: Communicator) -> None:
    """Run all tasks, each in its own thread except the first. Raises the first error, of any kind.

    If one task fails, the others end too: their connections do.
    """
    first, *others = tasks
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as e:
            errors.append(e)
            communicator.abort(first_line(e))

    threads = [threading.Thread(target=run, args=(task,), name="elastrain-transfer") for task in others]
    for thread in threads:
        thread.start()
    run(first)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


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


def _bytes_of(tensors: Sequence[torch.Tensor], part: StateSlice) -> torch.Tensor:
    return raw_bytes(tensors[part.unit])[part.start : part.start + part.nbytes]


def _pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([raw_bytes(tensor).cpu() for tensor in tensors])


def reserve(device: torch.device) -> None:
    """The state will be received into tensors of ``device``, or sent from them."""
    staging.reserve(device, RESERVED, PIECE_BYTES)
