"""NCCL as a :class:`elastrain.elastic.comm.transport.Transport`: sums of gradients that stay on the devices.

By torch's ``ProcessGroupNCCL``, which is told to leave errors to us: its own watchdog would end the process, or abort
the communicator behind our back, and a kernel that an abort has let go leaves garbage that looks like a sum.

What is known of NCCL and shapes this (sources in docs/gpu.md):

- A kernel whose peer is gone spins for ever. ``ncclCommAbort`` ends it; nothing else does.
- Two communicators may have kernels on a device only one after the other. So forming a communicator launches none: its
  first is that of the first step of its generation, and the one before has been waited for by then.
- In the non-blocking mode NCCL 2.26 hangs at random, and nothing in Python can wait for the end of an initialisation.
  So the blocking mode is used, in a thread that can be left behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
import torch
import torch.distributed as dist

from elastrain.elastic.comm.exchange import PeersStore
from elastrain.elastic.comm.gloo import COLLECTIVE_TIMEOUT, CONNECT_TIMEOUT, first_line, group_over

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 30.0
"""Bound of a healthy communicator's end, and of waiting for an abort, before it is left to its thread."""
_LOOK_SECONDS = 0.05
"""How often the wait for an initialisation looks whether anybody still wants it."""
_OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # errors are handled here
    "TORCH_NCCL_BLOCKING_WAIT": "0",  # else torch does not even look for them
    "TORCH_NCCL_RANKS_PER_ROOT": str(2**20),  # one id for all of them: it goes out by one broadcast
}
_QUIET = {
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # ends the process after 8 minutes of its own counting
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # writes to a store that ends with the generation
}


class InitialisationFailed(RuntimeError):
    """NCCL could not connect the ranks, or not in time."""


class CalledOff(Exception):
    """Nobody wants this communicator any more."""


class Nccl:
    """A NCCL communicator over the ranks of one generation."""

    def __init__(self, backend: Any, group: dist.ProcessGroup, store: dist.Store) -> None:
        """``backend``: a connected ``ProcessGroupNCCL``; ``group`` carries it. Use :func:`form`."""
        self._backend, self._group = backend, group
        self._store = store  # what C++ holds of it calls into this object
        self._lock = threading.Lock()
        self._aborting: threading.Thread | None = None
        self._finished = False

    def takes(self, tensor: torch.Tensor) -> bool:
        on_device: bool = tensor.is_cuda
        return on_device

    def sum(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        # As torch's own communication hooks do it: awaiting this makes the current stream wait, not the host.
        future: torch.futures.Future[torch.Tensor] = self._group.allreduce([buffer]).get_future().then(_first)
        return future

    def error(self) -> str | None:
        """An error that NCCL has met in the background (a network that failed), as torch's watchdog has seen it."""
        ask = getattr(self._backend, "get_error", None)  # not every torch that we support has it
        state = None if ask is None else ask()
        return (
            None if state is None or state.name == "SUCCESS" else f"NCCL reports {state.name.replace('_', ' ').lower()}"
        )

    def abort(self, cause: str) -> None:
        with self._lock:
            if self._aborting is None:
                # A daemon: one that never comes back from NCCL must not keep the process from ending.
                self._aborting = threading.Thread(
                    target=self._abort, args=(cause,), name="elastrain-abort", daemon=True
                )
                self._aborting.start()

    def finish(self) -> None:
        """End in good order, where every rank does so at about the same time and nothing is under way; else by an
        abort. Returns when it has ended, within ``CLOSE_SECONDS``.
        """
        with self._lock:
            if self._aborting is not None:
                return
        ending = threading.Thread(target=self._shut_down, name="elastrain-finish", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)

    def close(self) -> None:
        if not self._finished:
            self.abort("closed")
            assert self._aborting is not None
            self._aborting.join(CLOSE_SECONDS)
            if self._aborting.is_alive():
                log.error("NCCL's abort has not returned; its memory stays in use", seconds=CLOSE_SECONDS)
        self._backend = self._group = None

    def _abort(self, cause: str) -> None:
        began = time.monotonic()
        try:
            self._backend.abort()
        except RuntimeError as e:  # torch's words for a time-out; whoever waits is freed by vigil.py
            log.error("NCCL's abort failed", error=first_line(e), cause=cause)
        else:
            log.info("NCCL communicator aborted", seconds=round(time.monotonic() - began, 3), cause=cause)

    def _shut_down(self) -> None:
        try:
            self._backend.shutdown()
        except RuntimeError as e:
            log.warning("NCCL communicator did not end in good order", error=first_line(e))
        else:
            self._finished = True


def form(  # noqa: PLR0917 - all of them, always
    store: IdStore,
    rank: int,
    world_size: int,
    device: torch.device,
    host: Any,
    called_off: Callable[[], bool],
) -> tuple[Nccl, dist.ProcessGroup]:
    """Connect to all ranks; returns when that is done. Launches no kernel, so training may go on meanwhile.

    ``host``: gloo's backend for the group's tensors on the CPU. Blocks up to ``CONNECT_TIMEOUT``. Raises
    :class:`InitialisationFailed`, or :class:`CalledOff` soon after ``called_off()`` says so; in both cases the thread
    that still waits inside NCCL ends what it has made.
    """
    attempt = _Attempt(store, rank, world_size, device)
    end = time.monotonic() + CONNECT_TIMEOUT.total_seconds()
    while not attempt.done.wait(_LOOK_SECONDS):
        if called_off():
            attempt.leave()
            raise CalledOff
        if time.monotonic() > end:
            attempt.leave()
            raise InitialisationFailed(
                f"NCCL has not connected {world_size} ranks within {CONNECT_TIMEOUT.total_seconds():g} s; set "
                "NCCL_DEBUG=INFO to see why, NCCL_SOCKET_IFNAME to choose the network, or ELASTRAIN_BACKEND=gloo to do "
                "without NCCL, in the template's env"
            )
    backend = attempt.result()
    group = group_over(store, rank, world_size, host, backend)
    return Nccl(backend, group, store), group


def settings(environ: dict[str, str] | os._Environ[str]) -> list[str]:
    """Set what ``ProcessGroupNCCL`` reads when it is made. Returns the variables whose user's value had to yield."""
    overruled = [name for name, value in _OURS.items() if environ.get(name, value) != value]
    environ.update(_OURS)
    for name, value in _QUIET.items():
        environ.setdefault(name, value)
    return overruled


class _Attempt:
    """One initialisation, in a thread of its own: inside NCCL it cannot be called off."""

    def __init__(self, store: IdStore, rank: int, world_size: int, device: torch.device) -> None:
        self.done = threading.Event()
        self._of = (store, rank, world_size, device)
        self._lock = threading.Lock()
        self._left = False
        self._backend: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="elastrain-nccl", daemon=True).start()

    def leave(self) -> None:
        """Nobody waits any more: whatever comes of it is ended by the thread itself."""
        with self._lock:
            self._left = True
            backend = self._backend if self.done.is_set() else None
        if backend is not None:
            backend.abort()

    def result(self) -> Any:
        if self._error is not None:
            raise InitialisationFailed(
                f"NCCL: {first_line(self._error)}; set NCCL_DEBUG=INFO to see why, or ELASTRAIN_BACKEND=gloo to do "
                "without NCCL, in the template's env"
            ) from self._error
        return self._backend

    def _run(self) -> None:
        try:
            backend = open_backend(*self._of)
        except Exception as e:
            self._error = e
            self.done.set()
            return
        with self._lock:
            self._backend = backend
            left = self._left
            self.done.set()
        if left:
            backend.abort()


def open_backend(store: dist.Store, rank: int, world_size: int, device: torch.device) -> Any:
    """A connected ``ProcessGroupNCCL``. Blocks, without the interpreter's lock, until all ranks have called it."""
    if overruled := settings(os.environ):
        log.warning(
            "elastrain handles NCCL's errors itself, so what these variables said does not hold", variables=overruled
        )
    kind: Any = dist.distributed_c10d.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    options.config.blocking = 1
    with torch.cuda.device(device):
        backend = kind(store, rank, world_size, options)
        backend.eager_connect_single_device(device)
    return backend


class IdStore(PeersStore):
    """What ``ProcessGroupNCCL`` needs of a store: rank 0 sets NCCL's id, and all others get it.

    They do so over the generation's own connections: no server, no name to look up. Rank 0 reads nothing, so for it the
    exchange is when it sets the id. What is set later (torch's own diagnostics) stays local.
    """

    def __init__(self, number: int, rank: int, gather: Callable[[bytes], list[bytes]]) -> None:
        """As of :class:`PeersStore`, for this rank of the generation."""
        super().__init__(number, gather)
        self._rank = rank

    def set(self, key: str, value: str | bytes) -> None:
        super().set(key, value)
        if self._rank == 0:
            self.meet()

    def _exchange(self) -> dict[str, bytes]:
        return self._brought()[0]  # what another rank has set is its own

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def add(self, key: str, value: int) -> int:
        total = int(self._values.get(key, b"0")) + value
        self._values[key] = str(total).encode()
        return total

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]
