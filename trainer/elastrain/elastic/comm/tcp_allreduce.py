"""Sums of host tensors over the ranks of a generation, over connections of the project's own.

gloo does the same, but what it has half sent or half received when a connection ends waits for its time-out of half an
hour, and until then holds the tensor, three threads and the group (:mod:`elastrain.elastic.comm.gloo`). Here
whoever owns
the connections shuts them, and everything ends within milliseconds, whatever was under way; nothing is left. The rules
are those of a :class:`elastrain.elastic.comm.transport.Transport`.

A tensor is cut into as many chunks as there are ranks. Each rank gets one chunk of all the others, adds them, and sends
the sum to all: a reduce-scatter and an all-gather, which for ``N`` ranks carry ``2 (N - 1) / N`` times the tensor each
way, the least there is (Patarasuk and Yuan, 2009). Both go in pieces, so that a piece is added and returned while the
next ones are on their way. The order of the additions depends on the number of ranks alone, and all of them end with
the same bits.

Small tensors go the same way. In one hop, everything to everybody, they would be quicker by a third of a millisecond,
but a rank that was frozen before it sent anything would find all that it needs in its sockets when it wakes, and commit
a step that the others have given up. In two hops it has the sum only if all others have had what it brought.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from elastrain.elastic.comm.gloo import first_line
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.transport import completed

PIECE_BYTES = 1 << 21
"""What is added and returned at a time: enough that what Python does in between does not count."""
WINDOW = 4
"""Pieces on their way from a rank to another before the first of them must have been added. Their memory is used in
turn, so that it stays in the processor's cache."""
_GRAIN = 1 << 15
"""Numbers that are added by one call. For more torch would start threads (``at::internal::GRAIN_SIZE``), and the
cores have a backward to do."""
_NOTHING = torch.empty(0, dtype=torch.uint8)


class Sums:
    """One thread, which takes one tensor after the other, in the order in which all ranks bring them."""

    def __init__(self, mesh: Mesh, rank: int, failed: Callable[[str], None], largest: int = 0) -> None:
        """``failed`` is told, in any thread, why a sum failed; from then on nothing is summed. Memory for tensors of up
        to ``largest`` bytes is made ready now, while nobody waits for it."""
        self._mesh, self._rank, self._world_size = mesh, rank, len(mesh.peers) + 1
        self._failed = failed
        self._queue: queue.SimpleQueue[_Sum | None] = queue.SimpleQueue()
        self._memory: dict[int, torch.Tensor] = {}
        self._largest = largest
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="elastrain-sums", daemon=True)
        self._thread.start()

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_contiguous()

    def sum(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Raises ``RuntimeError`` if the mesh was called off."""
        return self.sum_together(buffer)[0]

    def sum_together(
        self, *buffers: torch.Tensor, before: Callable[[], None] = lambda: None
    ) -> list[torch.futures.Future[torch.Tensor]]:
        """Each of them, in hardly more time than the largest. ``before`` is called when their turn has come and may
        still write to them; it does not block. Raises ``RuntimeError`` if the mesh was called off.
        """
        futures = [torch.futures.Future[torch.Tensor]() for _ in buffers]
        with self._lock:
            if self._closed:
                return [completed(buffer) for buffer in buffers]
            if not self._mesh.begin():
                raise RuntimeError("the generation was called off")
            self._queue.put(_Sum(buffers, futures, before))
        return futures

    def close(self) -> None:
        """Return when no tensor is touched any more. Whoever owns the mesh's connections has shut them. Idempotent."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        healthy = True
        room = min(self._largest // self._world_size + mmap.PAGESIZE, WINDOW * PIECE_BYTES)
        self._memory[0] = _fresh(room * len(self._mesh.peers) if self._largest else 0)
        while (asked := self._queue.get()) is not None:
            if healthy:
                try:
                    asked.before()
                    self._sum([buffer.data.view(-1) for buffer in asked.buffers])
                except Exception as e:  # whatever it is: who waits for the sum must learn that it is none
                    healthy = False
                    self._failed(first_line(e))
            self._mesh.end()
            asked.complete()
            del asked  # its memory is not to wait here for the next one

    def _sum(self, flats: list[torch.Tensor]) -> None:
        """All begin before any is waited for: what follows what on a connection is the same at both of its ends."""
        whole = [flat if len(flat) >= self._world_size else _padded(flat, self._world_size) for flat in flats]
        for place, flat in enumerate(whole):
            _Exchange(self._mesh, self._rank, flat, partial(self._rows, place)).begin()
        self._mesh.run()
        for flat, padded in zip(flats, whole, strict=True):
            if padded is not flat:
                flat.copy_(padded[: len(flat)])

    def _rows(self, place: int, count: int, like: torch.Tensor) -> list[torch.Tensor]:
        """So many tensors ``like`` this one, until the next call for the same ``place``: their memory is kept."""
        size = count * like.nbytes
        if len(memory := self._memory.get(place, _NOTHING)) < size:
            memory = self._memory[place] = _fresh(size)
        return list(memory[:size].view(like.dtype).view(count, len(like)))


@dataclass(frozen=True, slots=True)
class _Sum:
    """Tensors that travel together."""

    buffers: Sequence[torch.Tensor]
    futures: Sequence[torch.futures.Future[torch.Tensor]]
    before: Callable[[], None]

    def complete(self) -> None:
        for buffer, future in zip(self.buffers, self.futures, strict=True):
            future.set_result(buffer)


class _Exchange:
    """One tensor's sum in chunks, each of which is one rank's to complete, piece by piece.

    Every connection carries, in this order: pieces 0 to ``window - 1``, sum 0, piece ``window``, sum 1 … Where several
    tensors travel together, the first pieces of all come first, and sums are complete in the order of their pieces.
    """

    def __init__(
        self, mesh: Mesh, rank: int, flat: torch.Tensor, rows: Callable[[int, torch.Tensor], list[torch.Tensor]]
    ) -> None:
        chunks = flat.tensor_split(len(mesh.peers) + 1)
        count = -(-chunks[0].nbytes // PIECE_BYTES)
        self._mesh = mesh
        self._pieces = [chunk.tensor_split(count) for chunk in chunks]
        """Of each rank."""
        self._mine = self._pieces[rank]
        self._window = min(WINDOW, count)
        self._rows = rows(self._window * len(mesh.peers), self._mine[0])
        self._missing = [len(mesh.peers)] * count
        """Of each of this rank's pieces: how many peers have not sent theirs."""

    def begin(self) -> None:
        for place in range(self._window):
            self._scatter(place)

    def _theirs(self, place: int) -> list[torch.Tensor]:
        """Where the peers' pieces arrive that are added to this rank's; of use again ``window`` pieces later."""
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
            # It overwrites what was sent there: this peer's sum is made of it, so it has gone.
            self._mesh.receive(peer, self._pieces[peer][place])
        if place + self._window < len(self._missing):
            self._scatter(place + self._window)


def _fresh(size: int) -> torch.Tensor:
    """So many bytes that have been written to, as the first write to a page takes longer than to receive it.

    Not from malloc: what a thread gives back there stays in its arena, and each generation has a new thread.
    """
    if not size:
        return _NOTHING
    memory = torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    memory.numpy().fill(0)  # not by torch, which would start threads for it
    return memory


def _padded(flat: torch.Tensor, size: int) -> torch.Tensor:
    padded = torch.zeros(size, dtype=flat.dtype)
    padded[: len(flat)] = flat
    return padded


def _add(into: torch.Tensor, other: torch.Tensor) -> None:
    for grain, more in zip(into.split(_GRAIN), other.split(_GRAIN), strict=True):
        grain.add_(more)
