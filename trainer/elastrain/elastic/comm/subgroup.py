"""Collectives over a few ranks of a generation: the ranks of a group, or those that hold the same shard.

They block, and add in an order that depends only on the place in the subgroup, so that all its ranks end with the same
bits. Every rank of the generation makes the same calls in the same order, each in its own subgroup; the headers of the
exchanges show a rank that does not. Tensors on a device travel through page-locked memory of the host, which waits for
the work that is queued before them; it does not wait for the copy back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.transport import page_locked, to_host, wait_for


class Subgroup:
    """Some ranks of a generation. Its methods raise ``GenerationBroken``; their tensors then hold any values."""

    def __init__(self, communicator: Communicator, ranks: Sequence[int]) -> None:
        """``ranks``: this rank among them, in the same order on all of them. Connects them, if they are not: every rank
        of the generation makes its own subgroup. Raises ``GenerationBroken``."""
        self._communicator = communicator
        self._peers = {rank: place for place, rank in enumerate(ranks) if rank != communicator.rank}
        communicator.reach(self._peers)
        self.place = ranks.index(communicator.rank)
        """This rank's among them."""

    @property
    def size(self) -> int:
        return len(self._peers) + 1

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        """Fill ``out`` with ``mine`` of each rank, by place. ``mine`` may be this rank's part of ``out``."""
        gathered = out if out.device.type == "cpu" else page_locked(out.shape, out.device, out.dtype)
        rows = gathered.view(self.size, -1)
        own = rows[self.place].copy_(mine.view(-1), non_blocking=mine.is_cuda)
        wait_for(mine.device)
        if self._peers:
            with self._communicator.exchange(own.nbytes, self._peers) as mesh:
                for peer, place in self._peers.items():
                    mesh.send(peer, own)
                    mesh.receive(peer, rows[place])
                mesh.run()
        if gathered is not out:
            out.copy_(gathered, non_blocking=True)

    def reduce_scatter(self, out: torch.Tensor, parts: torch.Tensor) -> None:
        """Fill ``out`` with the sum over the ranks of the part of ``parts`` that has this rank's place."""
        rows = to_host(parts).view(self.size, -1)
        mine = {self.place: rows[self.place]}
        if self._peers:
            with self._communicator.exchange(rows[0].nbytes, self._peers) as mesh:
                for peer, place in self._peers.items():
                    mine[place] = torch.empty_like(rows[place])
                    mesh.send(peer, rows[place])
                    mesh.receive(peer, mine[place])
                mesh.run()
        out.view(-1).copy_(_sum(mine, out.device), non_blocking=True)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum ``tensor`` over the ranks, in place: each adds one chunk, and sends the sum to all."""
        if not self._peers:
            return
        count = tensor.numel()
        flat = page_locked(max(count, self.size), tensor.device, tensor.dtype)
        flat[count:].zero_()
        flat[:count].copy_(tensor.view(-1), non_blocking=tensor.is_cuda)
        wait_for(tensor.device)
        chunks = flat.tensor_split(self.size)
        own = chunks[self.place]
        mine = {self.place: own}
        with self._communicator.exchange(flat.nbytes, self._peers) as mesh:

            def arrived(place: int, row: torch.Tensor) -> None:
                mine[place] = row
                if len(mine) == self.size:
                    own.copy_(_sum(mine, own.device))
                    for peer in self._peers:
                        mesh.send(peer, own)

            for peer, place in self._peers.items():
                row = torch.empty_like(own)
                mesh.send(peer, chunks[place])
                mesh.receive(peer, row, lambda place=place, row=row: arrived(place, row))  # type: ignore[misc]
                mesh.receive(peer, chunks[place])  # the sum contains what was sent from there, so it has left
            mesh.run()
        tensor.view(-1).copy_(flat[:count], non_blocking=True)

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """``mine`` of each rank, by place; lengths may differ."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        self.all_gather(sizes, torch.tensor([len(mine)]))
        longest = int(sizes.max()) + 1  # never empty
        rows = torch.zeros(self.size, longest, dtype=torch.uint8)
        self.all_gather(rows, torch.frombuffer(bytearray(mine.ljust(longest)), dtype=torch.uint8))
        return [row[:size].numpy().tobytes() for row, size in zip(rows, sizes.tolist(), strict=True)]


def _sum(rows: Mapping[int, torch.Tensor], device: torch.device) -> torch.Tensor:
    """In the order of the places. ``device``: to which the sum goes."""
    total = page_locked(rows[0].shape, device, rows[0].dtype).copy_(rows[0])
    for place in range(1, len(rows)):
        total += rows[place]
    return total
