"""Moves sharded tensors to a new placement, straight from rank to rank, a few tensors at a time.

The ranks that hold the state give it up as they go: a rank needs room for its new shard of one tensor, or of one bucket
of small ones, beside what it holds. A transfer that breaks therefore leaves no whole live state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.reshard.plan import Move, moves
from elastrain.elastic.reshard.remesh import ShardedTensor
from elastrain.elastic.state import digest
from elastrain.elastic.state.parts import bounds
from elastrain.elastic.state.transfer import buckets

BUCKET_BYTES = 32 * 2**20
"""Small tensors travel together, up to so many bytes of a rank's new shards."""

Source = Callable[[int, ShardedTensor, int], torch.Tensor]
"""``(number of the tensor, tensor, shard)``: this rank's rows of that shard of the old placement."""


@dataclass(frozen=True, slots=True)
class Change:
    """From one placement to another; the same on all ranks."""

    held: Sequence[Sequence[int]]
    """By rank: its shards of the old placement."""
    shards: int
    """Of the old placement."""
    places: Sequence[int | None]
    """By rank: its shard of the new placement; None: it leaves."""

    @property
    def size(self) -> int:
        """Shards of the new placement."""
        return sum(place is not None for place in self.places)

    @property
    def changes(self) -> bool:
        """Whether a rank holds another shard than before."""
        return self.size != self.shards or any(
            place is not None and place not in own[:1] for own, place in zip(self.held, self.places, strict=True)
        )


def carry_out(
    change: Change,
    communicator: Communicator,
    tensors: Sequence[ShardedTensor],
    source: Source,
    install: Callable[[ShardedTensor, torch.Tensor], None],
) -> int:
    """Move ``tensors``, and ``install(tensor, memory)`` each one on the ranks that stay. Returns the bytes sent.

    Raises ``GenerationBroken``, also for rows that arrived damaged.
    """
    planned = cache(lambda rows: moves(rows, change.held, change.shards, change.places))
    heights = [bounds(tensor.rows, change.size, 0)[1] * tensor.row_bytes for tensor in tensors]
    sent = 0
    for bucket in buckets(heights, BUCKET_BYTES):
        transfer = _Transfer(change, communicator.rank)
        for number in bucket:
            transfer.add(number, tensors[number], planned(tensors[number].rows), source)
        sent += transfer.run(communicator)
        for number, memory in transfer.arrived.items():
            install(tensors[number], memory)
    return sent


class _Transfer:
    """The moves of one bucket, as far as this rank takes part."""

    def __init__(self, change: Change, rank: int) -> None:
        self._change, self._rank = change, rank
        self._place = change.places[rank]
        self.arrived: dict[int, torch.Tensor] = {}
        self._outgoing: list[tuple[int, torch.Tensor]] = []
        self._incoming: list[tuple[int, torch.Tensor]] = []
        """Peer, and where its rows go."""
        self._nbytes = 0

    def add(self, number: int, tensor: ShardedTensor, planned: Sequence[Move], source: Source) -> None:
        home, first = None, 0
        if self._place is not None:
            home = self.arrived[number] = tensor.allocate(self._change.size)
            first = bounds(tensor.rows, self._change.size, self._place)[0]
        self._nbytes += tensor.rows * tensor.row_bytes
        for move in planned:
            if self._rank not in (move.source, move.receiver):
                continue
            if move.source == self._rank:
                begin = bounds(tensor.rows, self._change.shards, move.shard)[0]
                rows = source(number, tensor, move.shard)[move.start - begin : move.stop - begin]
            if move.receiver == self._rank:
                assert home is not None
                into = home[move.start - first : move.stop - first]
                if move.source == self._rank:
                    into.copy_(rows)
                else:
                    self._incoming.append((move.source, into))
            else:
                self._outgoing.append((move.receiver, rows))

    def run(self, communicator: Communicator) -> int:
        """Raises ``GenerationBroken``. Returns the bytes of the rows that were sent."""
        peers = {peer for peer, _ in (*self._outgoing, *self._incoming)}
        sent = 0
        checks: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        communicator.reach(peers)
        with communicator.exchange(self._nbytes, peers, Kind.RESHARD) as mesh:
            for peer, rows in self._outgoing:
                data = rows.contiguous().cpu()
                mesh.send(peer, data)
                mesh.send(peer, torch.tensor([digest.of_bytes(_raw(data))]))
                sent += data.nbytes
            for peer, into in self._incoming:
                data = into if into.device.type == "cpu" else torch.empty(into.shape, dtype=into.dtype)
                theirs = torch.empty(1, dtype=torch.int64)
                mesh.receive(peer, data)
                mesh.receive(peer, theirs)
                checks.append((peer, data, theirs))
            mesh.run()
        for (_, into), (peer, data, theirs) in zip(self._incoming, checks, strict=True):
            if digest.of_bytes(_raw(data)) != theirs.item():
                communicator.fail(f"state from rank {peer} arrived damaged: checksums differ")
            if data is not into:
                into.copy_(data)
        return sent


def _raw(data: torch.Tensor) -> torch.Tensor:
    return data.reshape(-1).view(torch.uint8)
