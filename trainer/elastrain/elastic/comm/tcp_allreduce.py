"""Sums of tensors in the host's memory over the ranks of a generation, over the generation's own TCP connections.

gloo does the same, but it keeps a half-sent message, its tensor and three threads until a time-out of 30 minutes when a
connection ends. Here the owner of the connections shuts them, and every sum under way ends within milliseconds.

A tensor is cut into one chunk per rank. Each rank receives its chunk from all peers, adds them, and sends the sum to
all: a reduce-scatter and an all-gather, which for ``N`` ranks carry ``2 (N - 1) / N`` times the tensor each way, the
minimum (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). Chunks travel in pieces, so that one
piece is added and returned while the next ones travel. The order of the additions depends only on the number of ranks,
and all ranks end with the same bits.

Small tensors, as the votes for a step, travel over a tree (:mod:`elastrain.elastic.comm.tree`): what they cost is the
number of messages. One hop, from every rank to every rank, would be the shortest way. But a rank that was frozen before
it sent its part would find all other parts in its sockets when it wakes, and would commit a step that its peers have
given up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from elastrain import threads
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock.captures import relaxed
from elastrain.elastic.comm.transport import completed, event_behind, future_on, page_locked
from elastrain.elastic.comm.tree import TreeSum, reach

SMALL_BYTES = 1 << 15
"""Up to this size a sum travels over the tree. All ranks choose alike: their tensors have one size."""
SPARSE_BYTES = 1 << 20
"""The same while ranks lack connections: a larger sum makes them between all pairs. 2,048 ranks that enter a generation
make none: each brings about 300 bytes."""
PIECE_BYTES = 1 << 21
"""Bytes that are added and returned at a time; large enough to hide the cost of Python in between."""
WINDOW = 4
"""Pieces that may be on their way to a peer before the first of them is added. Their memory is used in turn, so that it
stays in the processor's cache."""
_GRAIN = 1 << 15
"""Numbers added by one call. Beyond this torch starts threads (``at::internal::GRAIN_SIZE``), while backward needs the
cores."""
_NOTHING = torch.empty(0, dtype=torch.uint8)


class TcpAllreduce:
    """One thread, which sums one tensor after the other, in the order in which all ranks pass them."""

    def __init__(self, mesh: Mesh, rank: int, failed: Callable[[BaseException], None]) -> None:
        """``failed(error)`` is called, in any thread, when a sum fails; after that nothing is summed."""
        self._mesh, self._rank, self._world_size = mesh, rank, mesh.world_size
        self._failed = failed
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._memory: dict[int, torch.Tensor] = {}
        """Where pieces of peers arrive, by the place of the tensor in its request."""
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threads.start(self._run, name="elastrain-allreduce")

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_contiguous()

    def sum(self, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
        """Raises :class:`PeerLost` if the mesh was called off."""
        return self.sum_together(buffer, label=label)[0]

    def sum_together(
        self, *buffers: torch.Tensor, label: Label, before: Callable[[], None] = lambda: None
    ) -> list[torch.futures.Future[torch.Tensor]]:
        """Sum all ``buffers``, in little more time than the largest takes.

        ``before()`` is called when their turn has come, in the summing thread. It may write to them; it waits for no
        peer. Raises :class:`PeerLost` if the mesh was called off.
        """
        futures = [torch.futures.Future[torch.Tensor]() for _ in buffers]
        with self._lock:
            if self._closed:
                return [completed(buffer) for buffer in buffers]
            if not self._mesh.begin():
                raise PeerLost("the generation was called off")
            self._queue.put(_Request(buffers, futures, label, before))
        return futures

    def close(self) -> None:
        """Return when no tensor is used any more. The mesh's connections are shut before. Idempotent."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        healthy = True
        while (request := self._queue.get()) is not None:
            if healthy:
                try:
                    request.before()
                    self._sum([buffer.data.view(-1) for buffer in request.buffers], request.label)
                except BaseException as e:  # of any kind: those that wait for the sum must learn that it failed
                    healthy = False
                    self._failed(e)
            self._mesh.end()
            request.complete()
            del request  # do not keep its memory until the next one

    def _sum(self, flats: list[torch.Tensor], label: Label) -> None:
        """Begin all sums before waiting for one: both ends of a connection then see the same order."""
        size = sum(flat.nbytes for flat in flats)
        if size <= (SPARSE_BYTES if self._mesh.sparse else SMALL_BYTES):
            TreeSum(self._mesh, self._rank, [flat for flat in flats if len(flat)]).run(label)
            return
        reach(self._mesh, self._rank, label)
        self._mesh.announce(label, size)
        whole = [flat if len(flat) >= self._world_size else _padded(flat, self._world_size) for flat in flats]
        for place, flat in enumerate(whole):
            _Exchange(self._mesh, self._rank, flat, partial(self._rows, place)).begin()
        self._mesh.run()
        for flat, padded in zip(flats, whole, strict=True):
            if padded is not flat:
                flat.copy_(padded[: len(flat)])

    def _rows(self, place: int, count: int, like: torch.Tensor) -> list[torch.Tensor]:
        """``count`` tensors like ``like``, valid until the next call for the same ``place``: their memory is reused."""
        size = count * like.nbytes
        if len(memory := self._memory.get(place, _NOTHING)) < size:
            memory = self._memory[place] = torch.empty(size, dtype=torch.uint8)
        return list(memory[:size].view(like.dtype).view(count, len(like)))


@dataclass(frozen=True, slots=True)
class _Request:
    """Tensors that are summed together."""

    buffers: Sequence[torch.Tensor]
    futures: Sequence[torch.futures.Future[torch.Tensor]]
    label: Label
    before: Callable[[], None]

    def complete(self) -> None:
        for buffer, future in zip(self.buffers, self.futures, strict=True):
            future.set_result(buffer)


class _Exchange:
    """The sum of one tensor. Each rank completes one chunk of it, piece by piece.

    Every connection carries, in this order: pieces 0 to ``window - 1``, sum 0, piece ``window``, sum 1 … For several
    tensors at once, the first pieces of all come first, and sums complete in the order of their pieces.
    """

    def __init__(
        self, mesh: Mesh, rank: int, flat: torch.Tensor, rows: Callable[[int, torch.Tensor], list[torch.Tensor]]
    ) -> None:
        chunks = flat.tensor_split(len(mesh.peers) + 1)
        count = -(-chunks[0].nbytes // PIECE_BYTES)
        self._mesh = mesh
        self._pieces = [chunk.tensor_split(count) for chunk in chunks]
        """By rank."""
        self._mine = self._pieces[rank]
        self._window = min(WINDOW, count)
        self._rows = rows(self._window * len(mesh.peers), self._mine[0])
        self._missing = [len(mesh.peers)] * count
        """For each of this rank's pieces: the number of peers that have not sent theirs."""

    def begin(self) -> None:
        for place in range(self._window):
            self._scatter(place)

    def _theirs(self, place: int) -> list[torch.Tensor]:
        """Where the peers' pieces for this rank's piece ``place`` arrive; used again ``window`` pieces later."""
        return [row[: len(self._mine[place])] for row in self._rows[place % self._window :: self._window]]

    def _scatter(self, place: int) -> None:
        for peer, row in zip(self._mesh.peers, self._theirs(place), strict=True):
            self._mesh.send(peer, self._pieces[peer][place])
            self._mesh.receive(peer, row, partial(self._arrived, place))

    def _arrived(self, place: int) -> None:
        self._missing[place] -= 1
        if self._missing[place]:
            return
        for row in self._theirs(place):
            _add(self._mine[place], row)
        for peer in self._mesh.peers:
            self._mesh.send(peer, self._mine[place])
            # The peer's sum overwrites the piece that was sent to it. The sum contains that piece, so it has left.
            self._mesh.receive(peer, self._pieces[peer][place])
        if place + self._window < len(self._missing):
            self._scatter(place + self._window)


def _padded(flat: torch.Tensor, size: int) -> torch.Tensor:
    padded = torch.zeros(size, dtype=flat.dtype)
    padded[: len(flat)] = flat
    return padded


def _add(into: torch.Tensor, other: torch.Tensor) -> None:
    for grain, more in zip(into.split(_GRAIN), other.split(_GRAIN), strict=True):
        grain.add_(more)


class StagedAllreduce:
    """A :class:`elastrain.elastic.comm.transport.Transport` that copies to the host, sums there, and copies back."""

    def __init__(self, on_host: TcpAllreduce, failed: Callable[[Exception], None]) -> None:
        """``failed(error)`` is called, in any thread, if the copy back to the device fails."""
        self._on_host, self._failed = on_host, failed
        self._stream: torch.cuda.Stream | None = None

    def takes(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda) and tensor.layout is torch.strided and tensor.is_contiguous()

    def sum(self, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
        stream = self._stream = self._stream or torch.cuda.Stream(buffer.device)
        staged = page_locked(buffer.shape, buffer.device, buffer.dtype).copy_(buffer, non_blocking=True)
        copied, done = event_behind(buffer.device), future_on(buffer)

        def wait() -> None:
            with relaxed():
                copied.synchronize()

        def bring_back(_: torch.futures.Future[torch.Tensor]) -> None:
            # A future records the stream that is current when it gets its value: awaiting it orders the caller's stream
            # after this copy.
            try:
                with relaxed(), torch.cuda.stream(stream):
                    buffer.copy_(staged, non_blocking=True)
                    done.set_result(buffer)
            except Exception as e:  # torch would only log it, and the future would never complete
                self._failed(e)
                done.set_exception(e)  # type: ignore[no-untyped-call, unused-ignore]

        (summed,) = self._on_host.sum_together(staged, label=label, before=wait)
        summed.add_done_callback(bring_back)
        return done
