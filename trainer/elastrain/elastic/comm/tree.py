"""Small sums over a tree of the ranks: up to rank 0, which has the sum, and down again to all.

Each rank talks to its parent and to at most :data:`FAN` children. A rank's cost therefore does not grow with the
generation, and the way of a sum grows with its logarithm: two hops up to nine ranks, six for 512. A star
is the shortest way and costs its root most, a chain the reverse; with this fan both are small.

Who has the sum knows two things (docs/architecture.md, "When a step counts"):

- *All ranks have taken part*: rank 0 adds when all of its children have sent, and so on down to the leaves.
- *The others get it too*, unless a rank on their way is lost or gives up: a rank that has the sum has passed it on
  before it reads it, and rank 0 does not complete a sum that none of its children waits for any more.

All ranks end with the same bits: each sum is made once, in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.peer import PeerLost

FAN = 8
"""Children of a rank. Up to nine ranks the tree is a star."""


def parent(rank: int, fan: int = FAN) -> int | None:
    """The rank that ``rank`` sends its part to; None for rank 0. Pure."""
    return (rank - 1) // fan if rank else None


def children(rank: int, world_size: int, fan: int = FAN) -> range:
    """The ranks that send their parts to ``rank``. Pure."""
    first = rank * fan + 1
    return range(min(first, world_size), min(first + fan, world_size))


def neighbours(rank: int, world_size: int, fan: int = FAN) -> list[int]:
    """All ranks that ``rank`` talks to. Pure."""
    above = parent(rank, fan)
    return [*([] if above is None else [above]), *children(rank, world_size, fan)]


def others(rank: int, world_size: int) -> list[int]:
    """All ranks but this one. Pure."""
    return [*range(rank), *range(rank + 1, world_size)]


def depth(world_size: int, fan: int = FAN) -> int:
    """Ranks on the way from rank 0 to the furthest one, without rank 0. Pure."""
    return depth(parent(world_size - 1, fan) + 1, fan) + 1 if world_size > 1 else 0  # type: ignore[operator]


def reach(mesh: Mesh, rank: int, label: Label, peers: Collection[int] | None = None) -> None:
    """Connect ``rank`` to those of ``peers`` (default: all ranks) to which it has no connection yet.

    Every rank calls it at the same place among its exchanges, each with its own peers, none of whom leaves it out. A
    sum over the tree comes first: while a rank waits for slow peers, its neighbours show a loss and a rank that does
    something else. When it ends all ranks are here, and a connect takes no longer than one as the generation forms.
    Raises :class:`PeerLost` and :class:`elastrain.elastic.comm.header.RanksDiverged`.
    """
    if not mesh.sparse:
        return
    TreeSum(mesh, rank, [torch.zeros(1)]).run(label)
    mesh.connect(others(rank, mesh.world_size) if peers is None else peers)
    mesh.sparse = peers is not None


class TreeSum:
    """One sum of some tensors, in place. None of them is empty."""

    def __init__(self, mesh: Mesh, rank: int, flats: Sequence[torch.Tensor], fan: int = FAN) -> None:
        self._mesh, self._flats = mesh, flats
        world_size = mesh.world_size
        self._above, self._below = parent(rank, fan), children(rank, world_size, fan)
        self._peers = neighbours(rank, world_size, fan)
        self._hops = depth(world_size, fan)
        self._rows = [[torch.empty_like(flat) for flat in flats] for _ in self._below]
        self._missing = len(self._below)

    def run(self, label: Label) -> None:
        """Return when this rank has the sum and has passed it on. Raises as of :meth:`Mesh.run`."""
        mesh, last = self._mesh, len(self._flats) - 1
        mesh.announce(label, sum(flat.nbytes for flat in self._flats), self._peers)
        for child, rows in zip(self._below, self._rows, strict=True):
            for place, row in enumerate(rows):
                mesh.receive(child, row, self._arrived if place == last else None)
        if self._above is not None:
            for place, flat in enumerate(self._flats):  # the sum contains what was sent from there, so it has left
                mesh.receive(self._above, flat, self._pass_on if place == last else None)
        if not self._below:
            self._complete()
        mesh.run(self._hops)

    def _arrived(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._complete()

    def _complete(self) -> None:
        """All parts of this rank's branch are here."""
        for rows in self._rows:
            for flat, row in zip(self._flats, rows, strict=True):
                flat.add_(row)
        if self._above is None:
            if all(self._mesh.has_left(child) for child in self._below):
                raise PeerLost("no peer waits for the sum any more")
            self._pass_on()
        else:
            self._send(self._above)

    def _pass_on(self) -> None:
        for child in self._below:
            self._send(child)

    def _send(self, peer: int) -> None:
        for flat in self._flats:
            self._mesh.send(peer, flat)
