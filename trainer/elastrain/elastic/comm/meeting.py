"""How the ranks of a generation learn each other's rows, which hold the address and the offer of each.

The generation's record has the port of rank 0, since each member publishes that of its local rank 0. Each rank sends
its row there. Rank 0 sends all rows to its children in the tree (:mod:`elastrain.elastic.comm.tree`), and each rank to
its own: none sends them more than ``FAN`` times, however many ranks there are. torch's TCPStore would serve, but its
clients look up the *name* of an address (a lost DNS answer takes 5 s), and none that waits in it can be called off.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from elastrain.api.records import Generation
from elastrain.elastic.comm import tree
from elastrain.elastic.comm.channel import Channels, Purpose
from elastrain.elastic.comm.peer import Patience, PeerLost, raises_peer_lost
from elastrain.elastic.comm.transport import first_line

MEETING_SECONDS = 60.0
"""Bound of waiting for peers that do not come. A lost peer shows sooner, by a newer generation."""
MAX_ROW = 64 * 2**10
"""Bytes of one rank's row."""
LENGTH_BYTES = 4
_RETRY_SECONDS = 0.02
"""Pause before the next attempt to reach a rank 0 that does not answer."""

Row = dict[str, str]


def exchange(g: Generation, rank: int, channels: Channels, mine: Row, called_off: Callable[[], bool]) -> list[Row]:
    """The rows of all ranks, in rank order, when all have come. Every rank of ``g`` calls it.

    Raises :class:`PeerLost` soon after ``called_off()``, and naming the workers that have not come.
    """
    others, patience = tree.others(rank, g.world_size), Patience(time.monotonic() + MEETING_SECONDS, called_off)
    opened: list[socket.socket] = []
    try:
        rows = [mine] if not others else _meet(g, rank, channels, mine, patience=patience, opened=opened)
    except PeerLost as e:
        raise PeerLost(
            f"generation {g.number}: {first_line(e)}; do all workers run the same version of elastrain?"
        ) from e
    finally:
        for connection in opened:
            channels.discard(connection)
    return rows


@raises_peer_lost
def _meet(
    g: Generation, rank: int, channels: Channels, mine: Row, *, patience: Patience, opened: list[socket.socket]
) -> list[Row]:
    """``opened`` receives the connections to close."""

    def accept(ranks: list[int]) -> dict[int, socket.socket]:
        try:
            found = channels.accept(ranks, Purpose.MEETING, MEETING_SECONDS, patience.called_off)
        except PeerLost as e:
            workers = dict.fromkeys(_worker_of(g, r) for r in channels.missing(ranks, Purpose.MEETING))
            raise PeerLost(f"no rank of {', '.join(workers)} has come: {first_line(e)}") from e
        opened.extend(found.values())
        return found

    below: dict[int, socket.socket] = {}
    if (above := tree.parent(rank)) is None:
        below = accept(tree.others(rank, g.world_size))
        rows = [mine, *(_receive(connection, MAX_ROW, patience) for connection in below.values())]
    else:
        opened.append(first := _reach(g, channels, patience))
        _send(first, mine, patience)
        rows = _receive(accept([above])[above] if above else first, MAX_ROW * g.world_size, patience)
    for child in tree.children(rank, g.world_size):
        if child not in below:
            below[child] = channels.connect(child, rows[child]["channels"], Purpose.MEETING, patience.called_off)
            opened.append(below[child])
        _send(below[child], rows, patience)
    return rows


def _reach(g: Generation, channels: Channels, patience: Patience) -> socket.socket:
    """A connection to rank 0, whose process may not expect the generation yet, or be lost: a newer one shows that."""
    assert g.first is not None, "an empty generation has no ranks"
    at = f"{g.first.address} {g.first.store_port}"

    def over() -> bool:
        return patience.called_off() or time.monotonic() > patience.ends

    while True:
        try:
            return channels.connect(0, at, Purpose.MEETING, over)
        except PeerLost as e:
            if over():
                raise PeerLost(f"rank 0 of {g.first.worker} does not answer at {at}: {first_line(e)}") from e
        time.sleep(_RETRY_SECONDS)


def _send(connection: socket.socket, message: Row | list[Row], patience: Patience) -> None:
    raw = json.dumps(message).encode()
    connection.settimeout(max(_RETRY_SECONDS, patience.ends - time.monotonic()))
    connection.sendall(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)


def _receive(connection: socket.socket, most: int, patience: Patience) -> Any:
    length = int.from_bytes(patience.receive(connection, bytearray(LENGTH_BYTES)), "big")
    if length > most:
        raise PeerLost(f"a peer announces {length} bytes")
    return json.loads(patience.receive(connection, bytearray(length)))


def _worker_of(g: Generation, rank: int) -> str:
    members = (m for m in g.members if m.rank_offset <= rank < m.rank_offset + m.slots)
    return next((m.worker for m in members), f"rank {rank}")
