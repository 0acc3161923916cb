"""What a generation has under way on devices: the host waits for it, and a thread watches NCCL for losses."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from elastrain.elastic.comm.header import left_early
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.stock import nccl, watchdog
from elastrain.elastic.comm.stock.watchdog import Mates
from elastrain.elastic.comm.transport import wait_for


class Connected(Protocol):
    """A rank's connections to the others of a generation, as of
    :class:`elastrain.elastic.comm.communicator.Communicator`."""

    rank: int
    step: int
    diverged: str | None
    broken_at: float | None
    mesh: Mesh | None

    @property
    def broken(self) -> str | None: ...

    def abort(self, cause: str) -> None: ...

    def pass_on(self) -> None: ...


class Devices:
    """Of one rank in one generation."""

    def __init__(self, of: Connected, connections: Sequence[socket.socket] = ()) -> None:
        """``connections``: to peers, whose end shows that a rank is lost."""
        self.since: float | None = None
        """Monotonic time since when NCCL may have collectives under way, which only an abort ends."""
        self._of, self._connections = of, connections
        self._running: set[torch.device] = set()  # that the host has not waited for
        self._watched: list[nccl.Nccl] = []
        self._watchdogs: list[watchdog.Watchdog] = []

    def uses(self, device: torch.device) -> None:
        """Sums are under way on ``device``."""
        self._running.add(device)

    def spins(self) -> None:
        """They are NCCL's, which wait for peers without end."""
        self.since = self.since or time.monotonic()

    def wait(self) -> None:
        """Return when none is under way. For the thread whose current streams wait for them."""
        while self._running:
            wait_for(self._running.pop())
        self.since = None

    def watch(self, communicator: nccl.Nccl, mates: Mates) -> None:
        """Look after ``communicator``, of all ranks or of some; a loss ends the generation."""
        self._watched.append(communicator)
        self._start((), list(mates.connections.values()))

    def watch_connections(self) -> None:
        """From now on: the end of one shows that a rank is lost, to this rank and by :meth:`Connected.pass_on` to
        others."""
        self._start(self._connections, ())

    def _start(self, connections: Sequence[socket.socket], mates: Sequence[socket.socket]) -> None:
        of, end = self._of, watchdog.end_process
        dog = watchdog.Watchdog(connections, mates, self._observe, abort=of.abort, pass_on=of.pass_on, end_process=end)
        self._watchdogs.append(dog)

    def stop(self) -> None:
        """End the threads. Idempotent; not callable from one of them."""
        for dog in self._watchdogs:
            dog.stop()

    def _observe(self, now: float, hung_up_at: float | None) -> watchdog.Observation:
        since, error = self.since, None
        if since is not None and self._of.broken is None:
            error = next(filter(None, (each.error() for each in self._watched)), None) or self._find_deserter()
        return watchdog.Observation(now, since, hung_up_at, error, self._of.broken_at)

    def _find_deserter(self) -> str | None:
        """A peer that waits outside of the loop for this rank, which waits for it on the device; and so for ever."""
        of, mesh = self._of, self._of.mesh
        for peer, header in (mesh.waiting() if mesh is not None else {}).items():
            of.diverged = of.diverged or left_early(of.rank, of.step, peer, header)
        return of.diverged
