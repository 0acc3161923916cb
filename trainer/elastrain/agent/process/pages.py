"""The pages that an agent shares with its ranks: it reads their heartbeats, and writes until when it vouches."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from elastrain.api import names
from elastrain.api.pages import heartbeat, vouch
from elastrain.api.pages.heartbeat import Beat
from elastrain.api.pages.vouch import Vouch


class Pages:
    """The pages of one incarnation of the ranks, read every ``interval`` seconds by a few small reads."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._paths: dict[int, Path] = {}
        self._read_at = float("-inf")

    def of(self, socket_path: Path, nproc: int) -> None:
        """Read these ranks' pages from now on; ranks create them when they join."""
        self._paths = {rank: Path(heartbeat.path_of(str(socket_path), rank)) for rank in range(nproc)}

    def due(self, now: float) -> dict[int, Beat] | None:
        """The pages by local rank; None before the next read is due."""
        if now - self._read_at < self._interval or not self._paths:
            return None
        self._read_at = now
        beats = {rank: read(path) for rank, path in self._paths.items()}
        return {rank: beat for rank, beat in beats.items() if beat is not None}


class VouchPage:
    """Where the ranks of one incarnation read until when they may commit (:mod:`elastrain.api.pages.vouch`)."""

    def __init__(self, socket_path: Path) -> None:
        """Create the page beside the socket, before a rank can look for it."""
        with Path(vouch.path_of(str(socket_path))).open("w+b") as file:
            file.truncate(vouch.SIZE)
            self._page = memoryview(mmap.mmap(file.fileno(), vouch.SIZE))
        self._count = 0

    def write(self, content: Vouch) -> None:
        self._count += 1
        vouch.write(self._page, self._count, content)


def read(path: Path) -> Beat | None:
    """The page at ``path``; None if there is none yet, or it changed during the read: the next read suffices."""
    try:
        raw = path.read_bytes()
        return heartbeat.parse(raw) if raw == path.read_bytes() else None
    except FileNotFoundError:
        return None


def print_stacks(pid: int) -> None:
    """Make a rank print the stacks of its threads. Only for a rank with a page: then it handles the signal."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(pid, names.STACKS_SIGNAL)
