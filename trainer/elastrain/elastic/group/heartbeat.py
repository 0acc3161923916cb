"""The rank's side of its heartbeat page (:mod:`elastrain.api.pages.heartbeat`): position, compute time per step.

``compute`` is the time of the loop body without the wait for other ranks. Backward overlaps with the collectives, so
this rank's part ends at the moment when its own gradients are done. The autograd engine runs queued callbacks in order:
a callback that is queued when backward begins runs before this rank waits for its peers. Times of the page are the
host's: work that a GPU has not finished counts as waiting. :attr:`Heartbeat.device` has those of a device.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from elastrain.api import names
from elastrain.api.pages import heartbeat
from elastrain.api.pages.heartbeat import Where
from elastrain.elastic import torch_private
from elastrain.elastic.group.device_time import DeviceTime

_SMOOTHING = 0.1
"""Weight of the newest step."""


class Heartbeat:
    """Records the position of the training thread. Every method takes about 1 µs, and none waits."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the page at ``path``. Raises ``OSError`` naming it."""
        with open(path, "w+b") as file:  # noqa: PTH123 - the page lives as long as the mapping
            file.truncate(heartbeat.SIZE)
            self._page = memoryview(mmap.mmap(file.fileno(), heartbeat.SIZE))
        self.device: DeviceTime | None = None
        """Measures :attr:`spent` instead of the host's clock."""
        self._clock = clock
        self._count = 0
        self._where = Where.STARTING
        self._since = clock()
        self._generation, self._world_size, self._commits = 0, 1, 0
        self._shared = self._total = self._spent = 0.0
        self._smoothed: float | None = None
        self._write()

    @classmethod
    def of_environment(cls) -> Heartbeat:
        """The page that this rank's agent reads. Also lets the agent request the stacks of all Python threads."""
        stacks_on_demand()
        socket_path = os.environ[names.ENV_AGENT_SOCKET]
        return cls(heartbeat.path_of(socket_path, int(os.environ.get(names.ENV_LOCAL_RANK, "0"))))

    # -- where the training thread is --------------------------------------------------------------------------------
    def body(self, generation: int, world_size: int) -> None:
        """A loop body begins (before its batch is fetched)."""
        self._generation, self._world_size = generation, world_size
        if self.device is not None:
            self.device.begin()
        self._to(Where.BODY)
        self._spent = 0.0

    def backward(self, loss: torch.Tensor) -> None:
        """``loss.backward()`` follows: after its own part of it, this rank waits for the others."""
        if self.device is not None:
            self.device.follow()
        if loss.requires_grad:
            loss.register_hook(self._backward_began)

    @contextmanager
    def in_sum(self) -> Iterator[None]:
        """A sum over other ranks, in the middle of a backward. Any thread, while the training thread waits for it."""
        was = self._where
        self._to(Where.COLLECTIVE)
        try:
            yield
        finally:
            self._to(was)

    def waits(self) -> None:
        """From now on this rank waits for the others: it is a learner, or has done its part of an evaluation."""
        self._to(Where.COLLECTIVE)

    def resumed(self, total: float | None) -> None:
        """Backward has ended. ``total``: the sum of ``compute`` over all ranks; None if the step failed."""
        if total is not None:
            self._total = total
        self._to(Where.BODY)

    def runtime(self) -> None:
        """The loop body has ended, if it had not ended before."""
        if self._where is not Where.RUNTIME:
            self._to(Where.RUNTIME)

    def committed(self) -> None:
        """The loop body has ended, and its step counts."""
        self._commits += 1
        self._to(Where.RUNTIME)
        old = self._smoothed
        self._smoothed = self._spent if old is None else old + _SMOOTHING * (self._spent - old)

    def outside(self) -> None:
        """``job.steps`` has ended."""
        self._to(Where.OUTSIDE)

    def share(self) -> float:
        """``compute`` as this rank contributes it to the next collective."""
        self._shared = self._smoothed or 0.0
        return self._shared

    @property
    def spent(self) -> float:
        """Seconds that this rank has computed in the present step, up to its last backward; 0: not known."""
        return self._spent if self.device is None else self.device.seconds

    # -- inside --------------------------------------------------------------------------------------------------------
    def _backward_began(self, _gradient: torch.Tensor) -> None:
        torch_private.after_backward(self._gradients_done)

    def _gradients_done(self) -> None:
        self._to(Where.COLLECTIVE)

    def _to(self, where: Where) -> None:
        now = self._clock()
        if self._where is Where.BODY:
            self._spent += now - self._since
        if self.device is not None:
            self.device.waits()
            if where is Where.BODY:
                self.device.computes()
        self._where, self._since = where, now
        self._write()

    def _write(self) -> None:
        self._count += 1
        heartbeat.write(
            self._page, self._count, self._where, self._since, self._generation, self._world_size, self._commits,
            self._shared, self._total,
        )  # fmt: skip


def stacks_on_demand() -> None:
    """Print the stacks of all Python threads to standard error whenever :data:`names.STACKS_SIGNAL` arrives.

    By faulthandler, which needs no interpreter: it works while the main thread hangs in C code.
    """
    faulthandler.register(names.STACKS_SIGNAL, file=2, all_threads=True)
