"""gloo as a :class:`elastrain.elastic.comm.transport.Transport`, with an abort that works.

gloo's own abort calls do nothing in torch 2.13: a blocked receive waits for its timeout. What works is to shut the
group's TCP sockets down; the blocked collective then raises within milliseconds. To find exactly this group's sockets
each one gets a device, and so a listening socket, of its own, and ranks tell each other where: a connection of the
group has either our own device at its near end or a peer's at its far end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastrain.elastic.comm.transport import future_on

CONNECT_TIMEOUT = timedelta(seconds=30)
"""Bound of forming a group once all its ranks have met (:func:`elastrain.elastic.comm.exchange.meet`)."""
ABORT_SECONDS = 0.1
"""From an abort until collectives count as stuck. Those that end by it do so within 2 ms; busy machines need longer."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Bound of one collective, torch's own default. Lost peers do not wait for it: their generation is aborted."""

_ATTEMPTS = 5
"""Of telling the new device's listening socket from what others open at the same time."""

device_lock = threading.Lock()
"""Held while something that listens is made, so that a new listening socket is the new gloo device's."""


class Gloo:
    """A gloo group over the ranks of one generation, for tensors of the host and, through its memory, of devices."""

    def __init__(
        self, store: dist.Store, rank: int, world_size: int, address: str, failed: Callable[[str], None]
    ) -> None:
        """Connect to all peers; returns when every one of them is connected to this rank.

        ``address`` is this host's on the network of the collectives; ``failed`` is told, in any thread, why a
        collective failed. Blocks up to ``CONNECT_TIMEOUT``. Raises ``RuntimeError`` (torch's words) if a peer does not
        come.
        """
        self.world_size = world_size
        self.stuck = False
        """A collective did not end when it was aborted: what it was given must not be used again."""
        self._failed = failed
        self._cause = ""
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._aborted = self._given_up = self._closed = False
        self._late = 0
        """Collectives that were given up and have not ended. Each keeps this object, and so the group, alive."""
        self._stream: torch.cuda.Stream | None = None
        options = dist.ProcessGroupGloo._Options()
        device, at = _make_device(address)
        options._devices = [device]
        options._timeout = CONNECT_TIMEOUT
        store.set(f"listen/{rank}", " ".join(map(str, at)))  # goes out with gloo's own keys
        self.backend = dist.ProcessGroupGloo(store, rank, world_size, options)
        self.backend._set_default_timeout(COLLECTIVE_TIMEOUT)
        peers = {_place(store.get(f"listen/{r}").decode()) for r in range(world_size) if r != rank}
        self.sockets = [s for s in _tcp_sockets(listening=False) if _belongs(s, at, peers)]
        """Duplicates of the descriptors of the group's connections."""
        self.group: dist.ProcessGroup | None = group_over(store, rank, world_size, self.backend)

    @property
    def under_way_since(self) -> float | None:
        """Monotonic time at which the oldest collective that has not ended was begun; None: there is none."""
        with self._lock:
            return min((pending.since for pending in self._pending.values()), default=None)

    def takes(self, tensor: torch.Tensor) -> bool:
        return True

    def sum(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        assert self.group is not None
        return self.own(self.group.allreduce([buffer]), buffer, on_failure=buffer)

    def abort(self, cause: str) -> None:
        with self._lock:
            first, self._aborted = not self._aborted, True
            if first:
                self._cause = cause
            for s in self.sockets:
                with contextlib.suppress(OSError):  # already closed by the peer
                    s.shutdown(socket.SHUT_RDWR)
        if first:
            timer = threading.Timer(ABORT_SECONDS, self._give_up)
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Takes about 10 ms per peer: gloo joins its pairs."""
        with self._lock:
            sockets, self.sockets = self.sockets, []
        for s in sockets:
            s.close()
        with self._lock:
            self._closed = True
            if self._late:
                return  # the last of them lets go: the destructor joins their threads
        self._release()

    def own(self, work: dist.Work, result: Any, *, on_failure: Any = None) -> torch.futures.Future[Any]:
        """A future of our own for ``work``, which an abort can complete.

        gloo cannot be relied on for that: of a message that is half sent or half received when its connection ends, the
        waiting operation is told nothing. The future's value is ``result``; after a failure it is ``on_failure`` if
        that is given, else waiting raises ``RuntimeError``.
        """
        on_device = isinstance(result, torch.Tensor) and result.is_cuda
        future: torch.futures.Future[Any] = future_on(result) if on_device else torch.futures.Future()
        pending = _Pending(future, result, on_failure, work if on_device else None, time.monotonic())
        with self._lock:
            key = id(pending)
            self._pending[key] = pending
            given_up = self._given_up

        def ended(future: torch.futures.Future[Any]) -> None:
            with self._lock:
                in_time = self._pending.pop(key, None) is not None
            if not in_time:
                self._ended_late()
                return
            try:
                future.value()
            except RuntimeError as e:
                self._failed(first_line(e))
                pending.end(e, self._side_stream)
            else:
                pending.end(None, self._side_stream)

        work.get_future().add_done_callback(ended)
        if given_up:
            self._give_up()
        return future

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            left, self._pending = self._pending, {}
            self.stuck = self.stuck or bool(left)
            self._late += len(left)
        for pending in left.values():
            pending.end(RuntimeError(self._cause), self._side_stream)

    def _ended_late(self) -> None:
        """A collective has ended (by gloo's own time-out) that is waited for no longer; called in its thread."""
        with self._lock:
            self._late -= 1
            last = self._late == 0 and self._closed
        if last:
            # Not by one of the threads that this joins.
            threading.Thread(target=self._release, name="elastrain-release").start()

    def _release(self) -> None:
        self.group = self.backend = None

    def _side_stream(self, device: torch.device) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return self._stream


@dataclass(slots=True)
class _Pending:
    """A collective under way."""

    future: torch.futures.Future[Any]
    result: Any
    on_failure: Any
    copies_back: dist.Work | None
    """The work, if it sums in the host's memory what lies on a device."""
    since: float
    """Monotonic time."""

    def end(self, error: BaseException | None, side_stream: Callable[[torch.device], torch.cuda.Stream]) -> None:
        value = self.result if error is None else self.on_failure
        if value is None and error is not None:
            self.future.set_exception(error)
        elif self.copies_back is None:
            self.future.set_result(value)
        else:
            # gloo has only queued the copy back to the device, on a stream of its own. Whoever awaits the future must
            # be ordered after it, and a future knows the stream that is current when it gets its value.
            with torch.cuda.stream(side_stream(value.device)):
                if error is None:
                    self.copies_back.synchronize()  # orders streams; the host does not wait
                self.future.set_result(value)


def solo_group() -> dist.ProcessGroup:
    """A group of this rank alone, for what must have one before there is a generation. It has no connections."""
    store = dist.HashStore()
    options = dist.ProcessGroupGloo._Options()
    with device_lock:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    options._timeout = CONNECT_TIMEOUT
    return group_over(store, 0, 1, dist.ProcessGroupGloo(store, 0, 1, options))


def group_over(store: dist.Store, rank: int, world_size: int, host: Any, on_devices: Any = None) -> dist.ProcessGroup:
    """What DDP and the functions of ``torch.distributed`` take.

    ``host``: gloo's backend. ``on_devices``: NCCL's, for tensors of devices; None: gloo is for those, too.
    """
    kinds = dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, rank, world_size)
    group._set_default_backend(kinds.GLOO)
    group._register_backend(torch.device("cpu"), kinds.GLOO, host)
    if on_devices is not None:
        group._register_backend(torch.device("cuda"), kinds.NCCL, on_devices)
    elif torch.cuda.is_available():
        group._register_backend(torch.device("cuda"), kinds.GLOO, host)
    return group


def first_line(e: BaseException) -> str:
    return str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__


_Place = tuple[str, int]
"""Address and port of one end of a connection."""


def _make_device(address: str) -> tuple[Any, _Place]:
    """A gloo device bound to ``address`` and where it listens."""
    for _ in range(_ATTEMPTS):
        with device_lock:
            before = _listening()
            device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
            new = _listening() - before
        if len(new) == 1:
            return device, new.pop()
        del device  # something else began to listen meanwhile, such as NCCL for another generation
    raise RuntimeError(f"expected one listening socket of the new gloo device on {address}, found {len(new)}")


def _listening() -> set[_Place]:
    places = set()
    for s in _tcp_sockets(listening=True):
        places.add(s.getsockname()[:2])
        s.close()
    return places


def _place(text: str) -> _Place:
    address, port = text.split()
    return address, int(port)


def _tcp_sockets(*, listening: bool) -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets that listen (or are connected); the caller closes them."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - fds vanish while we look, names are all we need
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            s = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if (
            s.family in (socket.AF_INET, socket.AF_INET6)
            and s.type == socket.SOCK_STREAM
            and bool(s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listening
        ):
            yield s
        else:
            s.close()


def _belongs(s: socket.socket, at: _Place, peers: set[_Place]) -> bool:
    """Whether this connection is one of the group's; closes the duplicate if not."""
    try:
        if s.getsockname()[:2] == at or s.getpeername()[:2] in peers:
            return True
    except OSError:
        pass
    s.close()
    return False
