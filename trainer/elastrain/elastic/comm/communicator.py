"""The connections of one generation: form, abort, close.

A communicator belongs to exactly one generation and is never resized; a rescale replaces it. The interface follows what
torch >= 2.14 calls ``_reconfigure`` (connect to a set of peers by a unique name, out of the training thread), so that
it can move there.

Every generation has TCP connections of the project's own (:mod:`elastrain.elastic.comm.tcp_allreduce`): they sum
gradients in the host's memory and carry what ranks exchange there. Gradients on devices are summed over NCCL where each
rank has a CUDA device of its own (:mod:`elastrain.elastic.comm.backend` decides, alike on all ranks), else over a gloo
group. The group is formed where a rank uses it: also for DDP's own collectives under some options, and for torch's own
functions beside NCCL.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

import torch
import torch.distributed as dist

from elastrain.api.records import Generation
from elastrain.elastic.comm import nccl, watchdog
from elastrain.elastic.comm.backend import Backend, Offer, agree
from elastrain.elastic.comm.channel import Channels, Purpose
from elastrain.elastic.comm.connect_guard import wanted
from elastrain.elastic.comm.exchange import PeersStore
from elastrain.elastic.comm.gloo import CONNECT_TIMEOUT, Gloo, device_lock, first_line
from elastrain.elastic.comm.mesh import QUIET_SECONDS, Mesh
from elastrain.elastic.comm.tcp_allreduce import Sums
from elastrain.elastic.comm.transport import Transport, completed

FAREWELL_SECONDS = 10.0
"""Bound of waiting for all ranks to have let go of a healthy generation, off the training thread."""
_LAST_SECONDS = 1.0
"""What forms has so long to give up in words of its own, after ``CONNECT_TIMEOUT``."""


class GenerationBroken(RuntimeError):
    """A collective of this generation failed or was aborted; nothing of the step was committed on this rank."""

    def __init__(self, generation: int, cause: str) -> None:
        super().__init__(f"generation {generation} is broken: {cause}")
        self.generation = generation
        self.cause = cause


class Communicator:
    """What connects the ranks of one generation.

    The default group of ``torch.distributed`` stays untouched. Thread safety: collectives are for one thread at a time,
    :meth:`abort` and :meth:`call_off` may be called from any.
    """

    def __init__(
        self,
        *,
        of: Generation,
        rank: int,
        store: dist.Store,
        address: str,
        offer: Offer | None = None,
        device: torch.device | None = None,
        largest_sum: int = 0,
        called_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect to all peers of generation ``of``; returns when every one of them is connected to this rank.

        ``address`` is this host's address on the network of the collectives, ``offer`` what this rank could use for
        gradients (default: gloo), ``device`` where it computes them, and ``largest_sum`` about how many bytes it will
        sum at once in the host's memory. Blocks up to ``CONNECT_TIMEOUT``, once for each transport. Raises
        ``RuntimeError`` if a peer does not come, and :class:`nccl.CalledOff`.
        """
        self.of, self.rank, self.world_size = of, rank, of.world_size
        self._lock = threading.Lock()
        self._broken: str | None = None
        self.broken_at: float | None = None
        """Monotonic time at which it was, or was called off; None while it is healthy."""
        self._called_off: str | None = None
        self._sums_elsewhere = False
        """Whether NCCL or gloo may have something to do: only an abort ends that."""
        self._nccl: nccl.Nccl | None = None
        self.mesh: Mesh | None = None
        """This rank's connections to its peers; None: it has none, or the generation is closed."""
        self._sums: Sums | None = None
        self._gloo: Gloo | None = None
        self._group: dist.ProcessGroup | None = None
        self._vigil: watchdog.Vigil | None = None
        self._device_since: float | None = None
        with device_lock:
            self._channels = Channels(address)
        store.set(f"channels/{rank}", self._channels.invitation)
        store.set(f"offer/{rank}", (offer or Offer(Backend.GLOO)).encode())
        self._invitations = {r: store.get(f"channels/{r}").decode() for r in range(of.world_size)}
        offers = [Offer.decode(store.get(f"offer/{r}")) for r in range(of.world_size)]
        self.choice = agree(offers)
        """What sums gradients that lie on devices, and why."""
        if of.world_size > 1:
            self._form_mesh(largest_sum, called_off)
        if any(offer.group for offer in offers):
            with wanted(called_off, self.abort, CONNECT_TIMEOUT.total_seconds() + _LAST_SECONDS):
                self._form_gloo(address)
        if self.choice.backend is Backend.NCCL and of.world_size > 1:
            assert device is not None, "a rank that offers NCCL has a device"
            self._form_nccl(device, called_off)
        if of.world_size > 1 and self._gloo is not None:
            self._vigil = watchdog.Vigil(
                self._gloo.sockets, self._look, self.abort, watchdog.end_process, device=self._nccl is not None
            )
        self.connected_at = time.monotonic()

    @property
    def generation(self) -> int:
        """Its number."""
        return self.of.number

    @property
    def broken(self) -> str | None:
        """Why nothing counts that collectives of this group have left in the step under way; None: it does."""
        return self._broken

    @property
    def over(self) -> str | None:
        """Why no further step can be computed in this generation; None while it is healthy."""
        return self._broken or self._called_off

    @property
    def stuck(self) -> bool:
        """A collective did not end when it was aborted: what it was given must not be used again."""
        return self._gloo is not None and self._gloo.stuck

    def call_off(self, cause: str) -> None:
        """Another generation is to take this one's place: let no collective begin any more, and no step after this one.

        The step under way counts if this rank still gets all its sums, since one that is not in the next generation may
        have got them (:meth:`Mesh.call_off`); what NCCL or gloo sums has :data:`QUIET_SECONDS` for it. Of a generation
        of one member no other can have a part, and it ends at once. Idempotent, any thread, does not block.
        """
        with self._lock:
            if self._broken is not None or self._called_off is not None:
                return
            self._called_off, self.broken_at = cause, time.monotonic()
        if (mesh := self.mesh) is None or self.of.size == 1:
            self.abort(cause)
            return
        mesh.call_off()
        if self._sums_elsewhere:
            timer = threading.Timer(QUIET_SECONDS, self.abort, [cause])
            timer.daemon = True
            timer.start()

    def abort(self, cause: str) -> None:
        """End whatever is blocked in this group's collectives, here and (by the closed connections) at the peers.

        Idempotent, any thread, does not block. The first cause stays and is recorded before anything ends by it. A
        collective of gloo that has not ended ``gloo.ABORT_SECONDS`` later never ends and is not waited for
        (:attr:`stuck`). Where a device does not return, the rank ends itself (:mod:`elastrain.elastic.comm.watchdog`).
        """
        with self._lock:
            if self._broken is None:
                self._broken, self.broken_at = self._called_off or cause, self.broken_at or time.monotonic()
            cause = self._broken
        if self._nccl is not None:
            self._nccl.abort(cause)
        if (gloo := self._gloo) is not None:
            gloo.abort(cause)
        self._channels.shut()

    def close(self, *, together: bool = False) -> None:
        """Release the group, off the training thread.

        ``together``: all ranks leave the generation, healthy, at the same step boundary. They then wait for each other,
        bounded, so that no NCCL communicator ends under another rank's feet.
        """
        if self._vigil is not None:
            self._vigil.stop()
        if self._nccl is not None and together and self._farewell():
            self._nccl.finish()
        with self._lock:
            self._broken = self._broken or "closed"
        if self._nccl is not None:
            self._nccl.close()
        self._channels.shut()
        if self._sums is not None:
            self._sums.close()
            self.mesh = self._sums = None  # with what is left of a sum that failed
        self._channels.close()
        if self._gloo is not None:
            self._gloo.close()
        self._group = None

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

    # -- collectives of the host (each raises GenerationBroken) --------------------------------------------------------
    def all_gather_ints(self, values: list[int]) -> list[list[int]]:
        """``values`` of every rank, in rank order; every rank passes as many."""
        table = torch.zeros(self.world_size, len(values), dtype=torch.int64)
        table[self.rank] = torch.tensor(values, dtype=torch.int64)
        self._sum_on_host(table)
        rows: list[list[int]] = table.tolist()
        return rows

    def accept(self, ranks: Collection[int], purpose: Purpose) -> dict[int, socket.socket]:
        """Connections from ``ranks``, each of which calls :meth:`connect`. Raises ``OSError`` if aborted."""
        return self._channels.accept(ranks, purpose)

    def connect(self, rank: int, purpose: Purpose) -> socket.socket:
        """A connection to ``rank``, which calls :meth:`accept`. Raises ``OSError``."""
        return self._channels.connect(self.rank, self._invitations[rank], purpose)

    @contextlib.contextmanager
    def exchange(self) -> Iterator[Mesh]:
        """This rank's connections to its peers, for one exchange. Raises GenerationBroken."""
        with self.guard():
            mesh = self.mesh
            if mesh is None or not mesh.begin():
                raise ConnectionAbortedError("nothing begins any more")
            try:
                yield mesh
            finally:
                mesh.end()

    def fail(self, cause: str) -> NoReturn:
        """Break the generation for a reason that only the caller can see."""
        self.abort(cause)
        raise GenerationBroken(self.generation, cause)

    def barrier(self) -> None:
        self.all_gather_ints([self.rank])

    def _sum_on_host(self, table: torch.Tensor) -> None:
        with self.guard():
            if self._broken is None and (sums := self._sums) is not None:
                sums.sum(table).wait()

    # -- sums of gradients ---------------------------------------------------------------------------------------------
    def sum_bucket(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum ``buffer`` over all ranks, in place, without dividing.

        A failure marks the group broken and leaves whatever is there: the caller asks :attr:`broken` when it has waited
        for the sums, and discards the step. (An exception inside autograd would leave through user code.)
        """
        return self.sum_together(buffer)[0]

    def sum_together(
        self, *buffers: torch.Tensor, before: Callable[[], None] = lambda: None
    ) -> list[torch.futures.Future[torch.Tensor]]:
        """As :meth:`sum_bucket` of each; small ones cost no time beside a large one where all are the host's. All ranks
        do alike. ``before`` completes what is to be summed, as late as can be, in any thread; it does not block.
        """
        if self._broken is None and self.world_size > 1:
            try:
                by = [self._transport_of(buffer) for buffer in buffers]
                if isinstance(sums := by[0], Sums) and all(transport is sums for transport in by):
                    return sums.sum_together(*buffers, before=before)
                before()
                return [self._sum(transport, buffer) for transport, buffer in zip(by, buffers, strict=True)]
            except RuntimeError as e:
                self.abort(first_line(e))
        before()
        return [completed(buffer) for buffer in buffers]

    def _transport_of(self, buffer: torch.Tensor) -> Transport | Sums:
        """What sums tensors of this kind, on all ranks alike. Raises ``RuntimeError`` if nothing does."""
        for transport in (self._nccl, self._sums, self._gloo):
            if transport is not None and transport.takes(buffer):
                return transport
        raise RuntimeError(f"nothing here sums tensors on {buffer.device} with layout {buffer.layout}")

    def _sum(self, transport: Transport | Sums, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if transport is not self._sums:
            self._begin_elsewhere()
        if transport is self._nccl and self._device_since is None:
            self._device_since = time.monotonic()
        return transport.sum(buffer)

    def lend_group(self) -> dist.ProcessGroup | None:
        """A group of these ranks that DDP and the functions of ``torch.distributed`` accept; None once closed, and
        where no rank has offered to use one."""
        try:
            self._begin_elsewhere()
        except RuntimeError as e:  # whoever uses the group hears of it
            self.abort(first_line(e))
        return self._group

    @property
    def sums_by(self) -> str:
        """What sums gradients, for people: "nccl", "gloo", or "tcp", which are connections of our own."""
        if self._nccl is not None:
            return "nccl"
        return "tcp" if self._gloo is None else "gloo"

    def sums_on(self, device: torch.device) -> bool:
        """Whether tensors of ``device`` are summed without a way through the host's memory."""
        return device.type == "cpu" or self._nccl is not None

    def sums_awaited(self) -> None:
        """All sums that were begun have been waited for, on the host."""
        self._device_since = None

    def _begin_elsewhere(self) -> None:
        """Sums begin that know nothing of being called off. Raises ``RuntimeError`` if it is too late for them."""
        self._sums_elsewhere = True  # first: whoever calls off looks here last
        if self._called_off is not None:
            raise RuntimeError(self._called_off)

    def _form_mesh(self, largest_sum: int, called_off: Callable[[], bool]) -> None:
        try:
            connections = {peer: self.connect(peer, Purpose.SUMS) for peer in range(self.rank)}
            others = range(self.rank + 1, self.world_size)
            bound = CONNECT_TIMEOUT.total_seconds()
            connections |= self._channels.accept(others, Purpose.SUMS, bound, called_off)
        except OSError as e:
            self.abort(first_line(e))
            self.close()
            raise RuntimeError(f"could not connect to every peer: {first_line(e)}") from e
        self.mesh = Mesh(connections, self._channels.shut)
        self._sums = Sums(self.mesh, self.rank, self.abort, largest_sum)

    def _form_gloo(self, address: str) -> None:
        try:
            store = PeersStore(self.generation, self._gather)
            self._gloo = Gloo(store, self.rank, self.world_size, address, self.abort)
            self.barrier()  # a rank that fails next would end gloo's connections while another one still makes them
        except RuntimeError as e:
            self.abort(first_line(e))
            self.close()
            raise
        self._group = self._gloo.group
        if self._broken is not None:  # while it formed: it was not there to be aborted
            self._gloo.abort(self._broken)

    def _gather(self, mine: bytes) -> list[bytes]:
        """``mine`` of every rank, in their order. Raises ``GenerationBroken``."""
        sizes = [size for (size,) in self.all_gather_ints([len(mine)])]
        table = torch.zeros(self.world_size, max(sizes), dtype=torch.uint8)
        table[self.rank, : len(mine)] = torch.tensor(list(mine), dtype=torch.uint8)
        self._sum_on_host(table)
        return [row[:size].numpy().tobytes() for row, size in zip(table, sizes, strict=True)]

    # -- NCCL ----------------------------------------------------------------------------------------------------------
    def _form_nccl(self, device: torch.device, called_off: Callable[[], bool]) -> None:
        assert self._gloo is not None, "who offers NCCL asks for a group"
        try:
            store = nccl.IdStore(self.generation, self.rank, self._gather)
            self._nccl, self._group = nccl.form(
                store, self.rank, self.world_size, device, self._gloo.backend, called_off
            )
        except (nccl.CalledOff, RuntimeError) as e:
            self.abort(first_line(e))
            self.close()
            raise

    def _look(self, now: float, hung_up_at: float | None) -> watchdog.Seen:
        since, error = self._device_since, None
        if self._nccl is not None and since is not None and self._broken is None:
            error = self._nccl.error()
        host_since = None if self._gloo is None else self._gloo.under_way_since
        return watchdog.Seen(now, since, host_since, hung_up_at, error, self.broken_at)

    def _farewell(self) -> bool:
        """Whether every rank has let go of the generation and none is blocked in it."""
        if self._broken is not None:
            return False
        impatient = threading.Timer(FAREWELL_SECONDS, self.abort, [f"no farewell within {FAREWELL_SECONDS:g} s"])
        impatient.daemon = True
        impatient.start()
        try:
            self.barrier()
        except GenerationBroken:
            return False
        finally:
            impatient.cancel()
        return True
