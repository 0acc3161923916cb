"""Where a rank is, in a few bytes that it shares with its agent: the layout of a heartbeat page.

A rank writes its page at each step boundary and change of phase, by memory stores only; the agent reads it about once
a second. No message is sent and nothing waits, so that it costs a step a few microseconds and works while the
interpreter of the rank hangs. One page per rank, beside the agent's socket.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum


class Where(IntEnum):
    """What a rank is doing."""

    STARTING = 0
    """Before its first committed step: imports, warm-up and compilation may take minutes."""
    BODY = 1
    """In the loop body: the script's code, its data loader, its forward and backward."""
    COLLECTIVE = 2
    """Its own part of the step is done; it waits for the gradients of the others."""
    RUNTIME = 3
    """Between two steps: commits, saves a checkpoint, changes generation or waits for one."""
    OUTSIDE = 4
    """The loop has ended, for good or until the script calls ``job.steps`` again."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a page says."""

    where: Where = Where.STARTING
    since: float = 0.0
    """``time.monotonic()`` when it came there; one clock for all processes of a machine."""
    generation: int = 0
    world_size: int = 1
    commits: int = 0
    """Steps that this process has committed."""
    compute: float = 0.0
    """Seconds that the rank itself needs per step, without waiting for others; smoothed, as last sent to the others."""
    total: float = 0.0
    """Sum of ``compute`` over all ranks, from the collective of the last step; 0: not known yet."""


_LAYOUT = struct.Struct("<q qdqqqdd q")
"""The number of the write, the fields of :class:`Beat` in their order, the number again."""
SIZE = _LAYOUT.size
"""Bytes of a page."""


def path_of(socket_path: str, local_rank: int) -> str:
    """Where the page of a rank is, beside the agent's socket of its incarnation."""
    return f"{socket_path}.{local_rank}.beat"


def write(page: memoryview, count: int, *fields: float) -> None:
    """Store ``fields``, those of :class:`Beat` in their order, into ``page`` (``SIZE`` bytes).

    ``count`` is greater with each write, from 1 on. No ``Beat`` is made here: this runs several times per step.
    """
    _LAYOUT.pack_into(page, 0, count, *fields, count)


def parse(raw: bytes) -> Beat | None:
    """What a copy of a page says; None if nothing was written yet or it was copied in the middle of a write.

    A write may overtake a copy and leave no trace in it: copy twice, and trust two equal ones.
    """
    if len(raw) != SIZE:
        return None
    count, where, since, generation, world_size, commits, compute, total, end = _LAYOUT.unpack(raw)
    if count != end or count == 0:
        return None
    return Beat(Where(where), since, generation, world_size, commits, compute, total)
