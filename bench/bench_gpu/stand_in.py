"""gloo in the place of NCCL, in a process whose model is on the CPU: the dry part of ``make gpu``.

The runtime then takes the ways of a device: NCCL's offer and id, its sums, the vote after them, the watchdog, aborts.
gloo keeps to NCCL's habits as far as the runtime relies on them: a sum waits for its peers until an abort, which leaves
anything in the buffer, and a future never fails.
"""

from __future__ import annotations

import os
import queue
import threading
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from elastrain.elastic.comm import backend
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.strategies import strategy

STUCK = timedelta(seconds=15)
"""Bound of a sum of gloo, which an abort does not end: only its thread waits for it."""


class State(Enum):
    """As torch's ``ErrorType``."""

    SUCCESS = 0


class Gloo:
    """As much of ``ProcessGroupNCCL`` as the runtime uses."""

    def __init__(self, group: dist.ProcessGroupGloo, store: dist.Store) -> None:
        self._group, self._store = group, store
        self._aborted = threading.Event()
        self._queue: queue.SimpleQueue[tuple[torch.Tensor, torch.futures.Future[Any]] | None] = queue.SimpleQueue()
        self._future: torch.futures.Future[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="stand-in-device", daemon=True)
        self._thread.start()

    def allreduce(self, buffers: list[torch.Tensor]) -> Gloo:
        if self._aborted.is_set():
            raise RuntimeError("the communicator was aborted")
        self._future = torch.futures.Future()
        self._queue.put((buffers[0], self._future))
        return self

    def get_future(self) -> torch.futures.Future[Any]:
        assert self._future is not None
        return self._future

    def abort(self) -> None:
        self._aborted.set()

    def shutdown(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def get_error(self) -> State:
        return State.SUCCESS

    def _run(self) -> None:
        """The device: one sum after the other."""
        while (work := self._queue.get()) is not None:
            buffer, future = work
            self._sum(buffer)
            future.set_result([buffer])

    def _sum(self, buffer: torch.Tensor) -> None:
        if self._aborted.is_set():
            return
        copy, done = buffer.clone(), threading.Event()

        def run() -> None:
            try:
                self._group.allreduce([copy], dist.AllreduceOptions()).wait()
            except RuntimeError:
                self._aborted.wait()  # a kernel whose peer is gone waits for the abort
            done.set()

        threading.Thread(target=run, name="stand-in-kernel", daemon=True).start()
        while not done.wait(0.001):
            if self._aborted.is_set():
                buffer.fill_(float("nan"))
                return
        buffer.copy_(copy)


def open_backend(store: dist.Store, rank: int, world_size: int, _device: torch.device) -> Gloo:
    """In the place of ``nccl.open_backend``: rank 0's store has the port in NCCL's id."""
    if rank == 0:
        there = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
        store.set("0", str(there.port))
    else:
        there = dist.TCPStore("127.0.0.1", int(store.get("0")), world_size, is_master=False)
    return Gloo(dist.ProcessGroupGloo(there, rank, world_size, STUCK), there)


def install() -> None:
    """From now on this process takes the CPU for a device, and gloo for NCCL."""
    here = backend.Here("cuda", f"CPU of {os.getpid()}", (2, 99))
    strategy.look = lambda _: here  # type: ignore[attr-defined, assignment]
    nccl.open_backend = open_backend  # type: ignore[assignment]
    nccl.Nccl.takes = lambda _self, tensor: tensor.is_floating_point()  # type: ignore[method-assign, assignment]
