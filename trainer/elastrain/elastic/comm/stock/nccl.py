"""NCCL as a :class:`elastrain.elastic.comm.transport.Transport`: sums of gradients that stay on the devices.

Through torch's ``ProcessGroupNCCL``, configured to leave errors to elastrain. Its own watchdog would end the process,
or abort the communicator unseen; a kernel that an abort has ended leaves garbage that looks like a sum.

Properties of NCCL that shape this module (sources in docs/sharded.md):

- A kernel whose peer is gone spins forever. Only an abort ends it, or ``ncclCommRevoke``, which frees nothing.
- An abort frees memory that kernels of other ranks of the node may use (:mod:`elastrain.elastic.comm.stock.watchdog`).
- Kernels of two communicators run on a device only one after the other. Forming a communicator therefore launches none:
  its first kernel belongs to the first step of its generation, and the host has waited for the previous generation.
- It allocates and frees device memory as a communicator begins and ends, which a capture of a CUDA graph does not bear
  (:mod:`elastrain.elastic.comm.stock.captures`).
- In the non-blocking mode NCCL 2.26 hangs at random, and Python cannot wait for the end of an initialisation. The
  blocking mode is used, in a thread that can be left behind.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
import torch
import torch.distributed as dist

from elastrain import threads
from elastrain.elastic import torch_private
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock.captures import CAPTURES
from elastrain.elastic.comm.stock.watchdog import POLL_SECONDS, Mates
from elastrain.elastic.comm.transport import COLLECTIVE_SECONDS, CONNECT_SECONDS, CalledOff, first_line

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 30.0
"""Bound of a healthy communicator's end, and of an abort. After it the communicator is left to its thread."""
LEAST_REVOKE = (2, 30)
"""NCCL has ``ncclCommRevoke`` since 2.28.7. From this version on ``make gpu`` shows it on one card."""
REVOKE_SECONDS = 5.0
ROOM_BYTES = 1 << 30
"""Free device memory below which unused blocks of torch's allocator are released before NCCL initialises."""
_POLL_SECONDS = 0.05
"""Interval at which the wait for an initialisation checks whether it was called off."""
_OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # errors are handled here
    "TORCH_NCCL_BLOCKING_WAIT": "0",  # otherwise torch does not look for them
    "TORCH_NCCL_RANKS_PER_ROOT": str(2**20),  # one id for all ranks: one broadcast carries it
}
_QUIET = {
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # ends the process after 8 minutes of its own counting
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # writes to a store that ends with the generation
}


_WITHOUT = "ELASTRAIN_BACKEND=tcp to do without NCCL, in the template's env"


_SYSTEM = "unhandled system error"
_OF_PEERS = ("remote process exited", "remote error", _SYSTEM, "was aborted", "timed out", "timeout")
"""What NCCL and torch say of a peer, of the network to it, or of a communicator that was aborted."""
_SEEN_SECONDS = 4 * POLL_SECONDS
"""Within it the watchdog sees that a peer's connection has closed, and aborts."""
_ALONE = itertools.count()
"""Times that this process has met a "system error" while all its peers' connections were open."""


class InitialisationFailed(RuntimeError):
    """NCCL could not connect the ranks, or not in time. NCCL does not say whose failure that is."""


def blames_peer(text: str) -> bool:
    """Whether an error of a running communicator is of a peer or the network. Pure. Others are this rank's: of its
    device ("unhandled cuda error"), its memory, or a wrong call."""
    return any(words in text.lower() for words in _OF_PEERS)


class Nccl:
    """A NCCL communicator over the ranks of one generation."""

    def __init__(self, backend: Any, store: dist.Store, device: torch.device, mates: Mates) -> None:
        """``backend``: a connected ``ProcessGroupNCCL``. Use :func:`form`."""
        self._backend, self._device, self._mates = backend, device, mates
        self._store = store  # torch's C++ code calls this object
        self._lock = threading.Lock()
        self._aborting: threads.Thread | None = None
        self._finished = False
        self._group: dist.ProcessGroup | None = None

    @property
    def group(self) -> dist.ProcessGroup:
        """torch's process group over it."""
        if self._group is None:
            backend = self._backend
            rank, size = backend.rank(), backend.size()
            self._group = torch_private.process_group(self._store, rank, size, self._device, lambda *_: backend)
        return self._group

    def takes(self, tensor: torch.Tensor) -> bool:
        on_device: bool = tensor.is_cuda
        return on_device

    def sum(self, buffer: torch.Tensor, _label: Label) -> torch.futures.Future[torch.Tensor]:
        # As in torch's own communication hooks: awaiting this makes the current stream wait, and the host continues.
        try:
            future: torch.futures.Future[torch.Tensor] = self._backend.allreduce([buffer]).get_future().then(_first)
        except RuntimeError as e:
            if self._aborting is not None or (blames_peer(str(e)) and not self._fails_alone(str(e))):
                raise PeerLost(f"NCCL: {first_line(e)}") from e
            raise
        return future

    def _fails_alone(self, text: str) -> bool:
        """Whether an error is this rank's although its words may mean a peer: no memory in ``/dev/shm``, say, or no
        descriptors. All peers are there, and it is not the first time."""
        if _SYSTEM not in text.lower():
            return False
        time.sleep(_SEEN_SECONDS)
        return self._aborting is None and next(_ALONE) > 0

    def error(self) -> str | None:
        """An error that NCCL has met in the background, such as a failed network, as torch's watchdog reports it."""
        state = self._backend.get_error().name
        return None if state == "SUCCESS" else f"NCCL reports {state.replace('_', ' ').lower()}"

    def abort(self, cause: str) -> None:
        """End all sums under way. Idempotent, any thread, does not block."""
        with self._lock:
            if self._aborting is None:
                # A daemon thread: an abort that never returns from NCCL must not keep the process from ending.
                self._aborting = threads.start(self._abort, cause, name="elastrain-abort")

    def finish(self) -> None:
        """End in good order. All ranks call it at about the same time, with no sum under way.

        Returns within ``CLOSE_SECONDS``; :meth:`close` aborts if it has not ended by then.
        """
        with self._lock:
            if self._aborting is not None:
                return
        threads.start(self._shut_down, name="elastrain-finish").join(CLOSE_SECONDS)

    def close(self) -> None:
        """Release everything, after an abort unless :meth:`finish` has ended it. Blocks up to ``CLOSE_SECONDS``."""
        if not self._finished:
            self.abort("closed")
            assert self._aborting is not None
            self._aborting.join(CLOSE_SECONDS)
            if self._aborting.is_alive():
                log.error("NCCL's abort has not returned; its memory stays in use", seconds=CLOSE_SECONDS)
        self._backend = self._group = None
        self._mates.close()

    def _abort(self, cause: str) -> None:
        self._mates.begin()
        with CAPTURES.exclude("the abort of a NCCL communicator"):
            self._abort_alone(cause)

    def _abort_alone(self, cause: str) -> None:
        began = time.monotonic()
        revoked = revoke(self._backend, self._device)
        if late := self._mates.agree():
            log.warning("ranks of this node have not said that their kernels have ended", ranks=late, revoked=revoked)
        try:
            self._backend.abort()
        except RuntimeError as e:  # torch reports a time-out this way; the watchdog frees the waiting rank
            log.error("NCCL's abort failed", error=first_line(e), cause=cause)
        else:
            seconds = round(time.monotonic() - began, 3)
            log.info("NCCL communicator aborted", seconds=seconds, revoked=revoked, cause=cause)

    def _shut_down(self) -> None:
        try:
            with CAPTURES.exclude("the end of a NCCL communicator"):
                self._backend.shutdown()
        except RuntimeError as e:
            log.warning("NCCL communicator did not end in good order", error=first_line(e))
        else:
            self._finished = True


def form(
    store: IdStore, rank: int, world_size: int, device: torch.device, *, mates: Mates, called_off: Callable[[], bool]
) -> Nccl:
    """Connect to all ranks; returns when that is done. Launches no kernel, so training continues meanwhile.

    Blocks up to ``CONNECT_SECONDS``. Raises :class:`InitialisationFailed`, or :class:`CalledOff` soon after
    ``called_off()`` is true. In both cases the thread that still waits inside NCCL ends the communicator it has made.
    """
    make_room(device)
    attempt = _Attempt(store, rank, world_size, device)
    end = time.monotonic() + CONNECT_SECONDS
    while not attempt.done.wait(_POLL_SECONDS):
        if called_off():
            attempt.leave()
            raise CalledOff
        if time.monotonic() > end:
            attempt.leave()
            raise InitialisationFailed(
                f"NCCL has not connected {world_size} ranks within {CONNECT_SECONDS:g} s; set NCCL_DEBUG=INFO to see "
                f"why, NCCL_SOCKET_IFNAME to choose the network, or {_WITHOUT}"
            )
    return Nccl(attempt.result(), store, device, mates)


def revoke(backend: Any, device: torch.device) -> bool:
    """End the kernels of a communicator and free nothing, by ``ncclCommRevoke``; whether that was done.

    Not before NCCL 2.30, and not if torch does not give the communicator: an abort then frees while it ends. Bounded:
    what has not returned after ``REVOKE_SECONDS`` is left to the abort.
    """
    if (get := torch_private.nccl_pointer(backend)) is None or torch.cuda.nccl.version() < LEAST_REVOKE:
        return False
    try:
        function = ctypes.CDLL("libnccl.so.2").ncclCommRevoke  # already loaded, by torch
    except (OSError, AttributeError):
        return False
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
    results: list[int] = []

    def run() -> None:
        with torch.cuda.device(device):  # torch looks for the communicator of the current device
            results.append(function(get(), 0))

    threads.start(run, name="elastrain-revoke").join(REVOKE_SECONDS)
    return results == [0]


def make_room(device: torch.device) -> None:
    """NCCL allocates beside torch's caching allocator, which may hold the whole device without using it."""
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < ROOM_BYTES:
        log.info("the caching allocator releases what it does not use: NCCL needs device memory")
        with torch.cuda.device(device), CAPTURES.exclude("the release of unused device memory"):
            torch.cuda.empty_cache()


def settings(environ: dict[str, str] | os._Environ[str]) -> list[str]:
    """Set the variables that ``ProcessGroupNCCL`` reads. Returns those that had another value, set by the user."""
    overruled = [name for name, value in _OURS.items() if environ.get(name, value) != value]
    environ.update(_OURS)
    for name, value in _QUIET.items():
        environ.setdefault(name, value)
    return overruled


class _Attempt:
    """One initialisation, in a thread of its own: it cannot be called off inside NCCL."""

    def __init__(self, store: IdStore, rank: int, world_size: int, device: torch.device) -> None:
        self.done = threading.Event()
        self._of = (store, rank, world_size, device)
        self._lock = threading.Lock()
        self._left = False
        self._backend: Any = None
        self._error: BaseException | None = None
        threads.start(self._run, name="elastrain-nccl")

    def leave(self) -> None:
        """Stop waiting for it; the thread itself ends the communicator that it makes."""
        with self._lock:
            self._left = True
            backend = self._backend if self.done.is_set() else None
        if backend is not None:
            _abort(backend)

    def result(self) -> Any:
        if self._error is not None:
            raise InitialisationFailed(
                f"NCCL: {first_line(self._error)}; set NCCL_DEBUG=INFO to see why, or {_WITHOUT}"
            ) from self._error
        return self._backend

    def _run(self) -> None:
        try:
            with CAPTURES.exclude("NCCL's initialisation"):
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
            _abort(backend)


def open_backend(store: dist.Store, rank: int, world_size: int, device: torch.device) -> Any:
    """A connected ``ProcessGroupNCCL``. Blocks, without the interpreter's lock, until all ranks have called it."""
    if overruled := settings(os.environ):
        log.warning("elastrain handles NCCL's errors itself and overrides these variables", variables=overruled)
    options = torch_private.nccl_options(timedelta(seconds=COLLECTIVE_SECONDS))
    with torch.cuda.device(device):
        backend = dist.distributed_c10d.ProcessGroupNCCL(store, rank, world_size, options)
        backend.eager_connect_single_device(device)
    return backend


class IdStore(dist.Store):
    """The store that a process group needs to connect: all ranks read what each has set before it reads.

    The generation's own connections carry it, once: no server, no name to look up. With NCCL rank 0 sets an id and
    reads nothing, so its exchange is when it sets the id; with gloo each rank sets its address and reads those of all.
    Keys that are set later (torch's own diagnostics) stay local. Reading raises ``KeyError`` for a key that no rank has
    set, and the errors of ``gather``.
    """

    def __init__(
        self, number: int, rank: int, gather: Callable[[bytes], list[bytes]], *, root_reads: bool = False
    ) -> None:
        """For ``rank`` of a group in generation ``number``. ``gather``: every rank's bytes, in rank order.

        ``root_reads``: rank 0 reads as all others do.
        """
        super().__init__()
        self._number, self._exchanges_as_it_sets, self._gather = number, rank == 0 and not root_reads, gather
        self._values: dict[str, bytes] = {}
        self._exchanged = False

    def values(self) -> list[bytes]:
        """What all ranks have set."""
        return list(self._values.values())

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        if self._exchanges_as_it_sets:
            self.exchange()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def wait(self, keys: list[str], _timeout: timedelta | None = None) -> None:
        if not self.check(keys):
            self.exchange()
        if missing := [key for key in keys if key not in self._values]:
            raise KeyError(f"generation {self._number}: no rank has set {', '.join(missing)}")

    def exchange(self) -> None:
        """Take all ranks' values, once; of the same key, rank 0's."""
        if not self._exchanged:
            mine = {key: base64.b64encode(value).decode() for key, value in self._values.items()}
            for of_rank in reversed(self._gather(json.dumps(mine).encode())):
                self._values.update({key: base64.b64decode(value) for key, value in json.loads(of_rank).items()})
            self._exchanged = True

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def add(self, key: str, value: int) -> int:
        total = int(self._values.get(key, b"0")) + value
        self._values[key] = str(total).encode()
        return total

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None


def _abort(backend: Any) -> None:
    with CAPTURES.exclude("the abort of a NCCL communicator"):
        backend.abort()


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]
