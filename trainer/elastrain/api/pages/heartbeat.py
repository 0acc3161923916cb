"""The layout of a heartbeat page: the position of a rank, in a few bytes shared with its agent.

A rank writes its page at each step boundary and change of phase, by memory stores only. The agent reads it about once a
second. No message is sent and neither side waits, so a write takes a few microseconds, and the page stays readable
while the rank's interpreter hangs. One page per rank, beside the agent's socket.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum


class Where(IntEnum):
    """The activity of a rank."""

    STARTING = 0
    """Before the first committed step: imports, warm-up and compilation may take minutes."""
    BODY = 1
    """In the loop body: the script's code, data loader, forward and backward."""
    COLLECTIVE = 2
    """Waiting for the gradients of other ranks; the rank's own part of the step is done."""
    RUNTIME = 3
    """Between two steps: commits, saves a checkpoint, or enters a generation."""
    OUTSIDE = 4
    """After the loop, finally or until the script calls ``job.steps`` again."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The content of a page."""

    where: Where = Where.STARTING
    since: float = 0.0
    """``time.monotonic()`` at the start of this activity; all processes of a machine share the clock."""
    generation: int = 0
    world_size: int = 1
    commits: int = 0
    """Steps committed by this process."""
    compute: float = 0.0
    """Seconds of the rank's own work per step, without waiting; smoothed, as last sent to the other ranks."""
    total: float = 0.0
    """Sum of ``compute`` over all ranks, from the last step's collective; 0: unknown."""


_LAYOUT = struct.Struct("<q qdqqqdd q")
"""Sequence number, the fields of :class:`Beat` in order, sequence number again."""
SIZE = _LAYOUT.size
"""Bytes of a page."""


def path_of(socket_path: str, local_rank: int) -> str:
    """Path of a rank's page, beside the socket of its agent's incarnation."""
    return f"{socket_path}.{local_rank}.beat"


def write(page: memoryview, count: int, *fields: float) -> None:
    """Store ``fields``, in the order of :class:`Beat`, into ``page`` (``SIZE`` bytes).

    ``count`` grows with each write, from 1. Takes no ``Beat``, since it runs several times per step.
    """
    _LAYOUT.pack_into(page, 0, count, *fields, count)


def parse(raw: bytes) -> Beat | None:
    """The content of a copied page; None for an unwritten page or a torn copy.

    A write can overtake a copy undetected: copy twice, and accept two equal copies.
    """
    if len(raw) != SIZE:
        return None
    count, where, since, generation, world_size, commits, compute, total, end = _LAYOUT.unpack(raw)
    if count != end or count == 0:
        return None
    return Beat(Where(where), since, generation, world_size, commits, compute, total)
