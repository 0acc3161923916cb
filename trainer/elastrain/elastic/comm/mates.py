"""Ranks of one worker end their NCCL communicators together: none frees memory that kernels of another may still use.

NCCL maps buffers of the ranks of a node into each other. A rank that aborts alone frees its own, and the kernel of a
neighbour that reads them faults, which ends the neighbour's use of its device (NVIDIA/nccl#863). Here a rank first says
that it gives the communicator up, so that its mates begin no kernel any more; then that its kernels have ended; and it
frees nothing until all mates have said so too, or have ended.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping

from elastrain.api.records import Generation

AGREE_SECONDS = 1.0
"""Bound of waiting for mates. One that is frozen says nothing; its process ends in any case."""
_BEGUN, _ENDED = b"b", b"e"


def mates_of(generation: Generation, rank: int) -> list[int]:
    """The other ranks of this ``rank``'s worker. Pure."""
    for member in generation.members:
        if member.rank_offset <= rank < member.rank_offset + member.slots:
            ranks = range(member.rank_offset, member.rank_offset + member.slots)
            return [r for r in ranks if r != rank]
    return []


class Mates:
    """One connection to each mate, which outlives the generation's others. Any thread; one of them calls agree()."""

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        """``connections``: by rank; closed by :meth:`close`."""
        self.connections = dict(connections)

    def begin(self) -> None:
        """This rank gives its communicator up: the mates' watchdogs make them do the same."""
        self._say(_BEGUN)

    def agree(self, seconds: float = AGREE_SECONDS) -> list[int]:
        """This rank's kernels have ended. Return when those of all mates have; the ranks of which that is not known."""
        self._say(_ENDED)
        missing, end = dict(self.connections), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for rank, connection in missing.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while missing and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    rank = key.data
                    try:
                        said = missing[rank].recv(16)
                    except OSError:
                        said = b""
                    if not said or _ENDED in said:  # it has closed, or died: nothing of it runs any more
                        selector.unregister(missing.pop(rank))
        return sorted(missing)

    def close(self) -> None:
        """Idempotent."""
        for connection in self.connections.values():
            connection.close()

    def _say(self, what: bytes) -> None:
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.send(what)


def has_begun(connection: socket.socket) -> bool | None:
    """Whether the mate at the other end gives its communicator up; None: it has closed its end. For readable sockets.

    The byte stays unread, for :meth:`Mates.agree`.
    """
    try:
        return bool(connection.recv(1, socket.MSG_PEEK)) or None
    except OSError:
        return None
