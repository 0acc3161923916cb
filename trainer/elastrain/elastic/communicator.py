"""The process group of one generation: connect, abort, close.

A communicator belongs to exactly one generation and is never resized; a rescale replaces it. The interface follows what
torch >= 2.14 calls ``_reconfigure`` (connect to a set of peers by a unique name, out of the training thread), so that
it can move there.

gloo's own abort calls do nothing in torch 2.13: a blocked receive waits for its timeout. What works is to shut the
group's TCP sockets down; the blocked collective then raises within milliseconds. To find exactly this group's sockets
each one gets a device, and so a listening port, of its own, and ranks tell each other these ports: a connection of the
group has either our own port at its near end or a peer's port at its far end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from elastrain.api.records import Generation
from elastrain.elastic.channel import Channels, Purpose

CONNECT_TIMEOUT = timedelta(seconds=30)
"""Bound of forming a group once all its ranks have met (:func:`elastrain.elastic.store.meet`)."""
ABORT_SECONDS = 0.1
"""From an abort until collectives count as stuck. Those that end by it do so within 2 ms; busy machines need longer."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Bound of one collective, torch's own default. Lost peers do not wait for it: their generation is aborted."""

_device_lock = threading.Lock()
"""Held while a device is made, so that the new listening socket is the device's."""


class GenerationBroken(RuntimeError):
    """A collective of this generation failed or was aborted; nothing of the step was committed on this rank."""

    def __init__(self, generation: int, cause: str) -> None:
        super().__init__(f"generation {generation} is broken: {cause}")
        self.generation = generation
        self.cause = cause


class Communicator:
    """A gloo process group over the ranks of one generation.

    ``group`` is a ``torch.distributed.ProcessGroup`` that DDP and the functions of ``torch.distributed`` accept; the
    default group of ``torch.distributed`` stays untouched. Thread safety: collectives are for one thread at a time,
    :meth:`abort` may be called from any.
    """

    def __init__(self, *, of: Generation, rank: int, store: dist.Store, address: str) -> None:
        """Connect to all peers of generation ``of``; returns when every one of them is connected to this rank.

        ``address`` is this host's address on the network of the collectives. Blocks up to ``CONNECT_TIMEOUT``.
        Raises ``RuntimeError`` (torch's words) if a peer does not come.
        """
        self.of, self.rank, self.world_size = of, rank, of.world_size
        world_size = of.world_size
        self._lock = threading.Lock()
        self._broken: str | None = None
        self.broken_at: float | None = None
        """Monotonic time at which it was; None while it is healthy."""
        self.stuck = False
        """A collective did not end when it was aborted: what it was given must not be used again."""
        self._sockets: list[socket.socket] = []
        self._pending: dict[int, _Pending] = {}
        self._given_up = self._closed = False
        self._late = 0
        """Collectives that were given up and have not ended. Each keeps this object, and so the group, alive."""
        options = dist.ProcessGroupGloo._Options()
        device, port = _make_device(address)
        options._devices = [device]
        options._timeout = CONNECT_TIMEOUT
        with _device_lock:
            self._channels = Channels(address)
        store.set(f"listen/{rank}", str(port))  # these go out with gloo's own keys
        store.set(f"channels/{rank}", self._channels.invitation)
        backend = dist.ProcessGroupGloo(store, rank, world_size, options)
        backend._set_default_timeout(COLLECTIVE_TIMEOUT)
        peers = {int(store.get(f"listen/{r}")) for r in range(world_size) if r != rank}
        self._sockets = [s for s in _tcp_sockets(listening=False) if _belongs(s, port, peers)]
        self.group = _group_over(backend, store, rank, world_size)
        self._invitations = {r: store.get(f"channels/{r}").decode() for r in range(world_size)}
        self.connected_at = time.monotonic()

    @property
    def generation(self) -> int:
        """Its number."""
        return self.of.number

    @property
    def broken(self) -> str | None:
        """Why no collective of this group can succeed any more; None while it is healthy."""
        return self._broken

    def abort(self, cause: str) -> None:
        """End whatever is blocked in this group's collectives, here and (by the closed connections) at the peers.

        Idempotent, any thread, does not block. The first cause stays. A collective that has not ended
        ``ABORT_SECONDS`` later never will, and is waited for no longer (:attr:`stuck`).
        """
        with self._lock:
            first = self._broken is None
            if first:
                self._broken, self.broken_at = cause, time.monotonic()
            for s in self._sockets:
                with contextlib.suppress(OSError):  # already closed by the peer
                    s.shutdown(socket.SHUT_RDWR)
        self._channels.shut()
        if first:
            timer = threading.Timer(ABORT_SECONDS, self._give_up)
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Release the group. Takes about 10 ms per peer (gloo joins its pairs); call it off the training thread."""
        with self._lock:
            self._broken = self._broken or "closed"
            sockets, self._sockets = self._sockets, []
        for s in sockets:
            s.close()
        self._channels.close()
        with self._lock:
            self._closed = True
            if self._late:
                return  # the last of them lets go: the destructor joins their threads
        self.group = None

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            left, self._pending = self._pending, {}
            self.stuck = self.stuck or bool(left)
            self._late += len(left)
        for pending in left.values():
            pending.end(RuntimeError(self._broken))

    def _own(self, work: dist.Work, result: Any, *, on_failure: Any = None) -> torch.futures.Future[Any]:
        """A future of our own for ``work``, which an abort can complete.

        gloo cannot be relied on for that: of a message that is half sent or half received when its connection ends, the
        waiting operation is told nothing. The future's value is ``result``; after a failure it is ``on_failure`` if
        that is given, else waiting raises ``RuntimeError``.
        """
        pending = _Pending(torch.futures.Future(), result, on_failure)
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
                self.abort(first_line(e))
                pending.end(e)
            else:
                pending.end(None)

        work.get_future().add_done_callback(ended)
        if given_up:
            self._give_up()
        return pending.future

    def _ended_late(self) -> None:
        """A collective has ended (by gloo's own time-out) that is waited for no longer; called in its thread."""
        with self._lock:
            self._late -= 1
            last = self._late == 0 and self._closed
        if last:
            threading.Thread(target=self._release, name="elastrain-release").start()

    def _release(self) -> None:
        self.group = None  # not by one of the threads that this joins

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turn a failed collective inside the block into :class:`GenerationBroken`, and abort for the peers."""
        try:
            yield
        except GenerationBroken:
            raise
        except (RuntimeError, OSError) as e:  # torch raises plain RuntimeError from gloo
            self.abort(first_line(e))
            raise GenerationBroken(self.generation, self._broken or first_line(e)) from e
        if self._broken is not None:
            raise GenerationBroken(self.generation, self._broken)

    # -- collectives (each raises GenerationBroken) ------------------------------------------------------------------
    def all_gather_ints(self, values: list[int]) -> list[list[int]]:
        """``values`` of every rank, in rank order; every rank passes as many."""
        mine = torch.tensor(values, dtype=torch.int64)
        out = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self.guard():
            self._own(self.group.allgather([out], [mine]), out).wait()
        return [t.tolist() for t in out]

    def accept(self, ranks: Collection[int], purpose: Purpose) -> dict[int, socket.socket]:
        """Connections from ``ranks``, each of which calls :meth:`connect`. Raises ``OSError`` if aborted."""
        return self._channels.accept(ranks, purpose)

    def connect(self, rank: int, purpose: Purpose) -> socket.socket:
        """A connection to ``rank``, which calls :meth:`accept`. Raises ``OSError``."""
        return self._channels.connect(self.rank, self._invitations[rank], purpose)

    def fail(self, cause: str) -> NoReturn:
        """Break the generation for a reason that only the caller can see."""
        self.abort(cause)
        raise GenerationBroken(self.generation, cause)

    def barrier(self) -> None:
        self.all_gather_ints([self.rank])

    def sum_bucket(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum ``buffer`` over all ranks, in place, without dividing.

        A failure marks the group broken and leaves the local values: the caller asks :attr:`broken` after backward and
        discards the step. (An exception inside autograd would leave through user code.)
        """
        if self._broken is None and self.world_size > 1:
            try:
                return self._own(self.group.allreduce([buffer]), buffer, on_failure=buffer)
            except RuntimeError as e:
                self.abort(first_line(e))
        return completed(buffer)


@dataclass(slots=True)
class _Pending:
    """A collective under way."""

    future: torch.futures.Future[Any]
    result: Any
    on_failure: Any

    def end(self, error: BaseException | None) -> None:
        if error is None:
            self.future.set_result(self.result)
        elif self.on_failure is not None:
            self.future.set_result(self.on_failure)
        else:
            self.future.set_exception(error)


def completed(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The future of what is there already."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


def solo_group() -> dist.ProcessGroup:
    """A group of this rank alone, for what must have one before there is a generation. It has no connections."""
    store = dist.HashStore()
    options = dist.ProcessGroupGloo._Options()
    with _device_lock:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    options._timeout = CONNECT_TIMEOUT
    return _group_over(dist.ProcessGroupGloo(store, 0, 1, options), store, 0, 1)


def _group_over(backend: dist.ProcessGroupGloo, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
    """What DDP takes, for tensors wherever they are."""
    group = dist.ProcessGroup(store, rank, world_size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        group._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def _make_device(address: str) -> tuple[Any, int]:
    """A gloo device bound to ``address`` and the port on which it listens."""
    with _device_lock:
        before = _listening_ports()
        device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
        new = _listening_ports() - before
    if len(new) != 1:
        raise RuntimeError(f"expected one listening socket of the new gloo device on {address}, found {len(new)}")
    return device, new.pop()


def _listening_ports() -> set[int]:
    ports = set()
    for s in _tcp_sockets(listening=True):
        ports.add(s.getsockname()[1])
        s.close()
    return ports


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


def _belongs(s: socket.socket, port: int, peers: set[int]) -> bool:
    """Whether this connection is one of the group's; closes the duplicate if not."""
    try:
        if s.getsockname()[1] == port or s.getpeername()[1] in peers:
            return True
    except OSError:
        pass
    s.close()
    return False


def first_line(e: BaseException) -> str:
    return str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
