"""Reading the ranks' heartbeat pages, and asking a rank for its stacks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elastrain.api import heartbeat, names
from elastrain.api.heartbeat import Beat


class Pages:
    """The pages of one incarnation of the ranks, read every ``interval`` seconds: a few small reads, no system-wide
    cost."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._paths: dict[int, Path] = {}
        self._read_at = float("-inf")

    def of(self, socket_path: Path, nproc: int) -> None:
        """From now on these ranks' pages are read; ranks make them when they join."""
        self._paths = {rank: Path(heartbeat.path_of(str(socket_path), rank)) for rank in range(nproc)}

    def due(self, now: float) -> dict[int, Beat] | None:
        """What the pages say, by local rank; None while it is too early to look again."""
        if now - self._read_at < self._interval or not self._paths:
            return None
        self._read_at = now
        beats = {rank: read(path) for rank, path in self._paths.items()}
        return {rank: beat for rank, beat in beats.items() if beat is not None}


def read(path: Path) -> Beat | None:
    """The page at ``path``; None if there is none yet, or it changed while it was read: the next look will do."""
    try:
        raw = path.read_bytes()
        return heartbeat.parse(raw) if raw == path.read_bytes() else None
    except FileNotFoundError:
        return None


def print_stacks(pid: int) -> None:
    """Have a rank print the stacks of its threads. Only for one that has made a page: then it heeds the signal."""
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, names.STACKS_SIGNAL)
