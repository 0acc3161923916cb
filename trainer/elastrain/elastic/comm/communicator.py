"""The connections of one generation: form, abort, close.

A communicator belongs to exactly one generation and is never resized; a rescale replaces it. The interface follows
torch >= 2.14's ``_reconfigure`` (connect to a set of peers by a unique name, outside of the training thread), so that
it can move there.

Tensors in the host's memory are summed over TCP connections between all pairs of ranks
(:mod:`elastrain.elastic.comm.tcp_allreduce`). Gradients on devices are summed over NCCL if each rank has a CUDA device
of its own, and otherwise through the host's memory. All ranks take this decision alike
(:mod:`elastrain.elastic.comm.backend`). With NCCL a generation begins with the connections of its tree
(:mod:`elastrain.elastic.comm.tree`); others are made when they are needed (:meth:`Communicator.reach`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NoReturn

import torch

from elastrain import threads
from elastrain.api.records import Generation
from elastrain.elastic.comm import meeting, tree
from elastrain.elastic.comm.backend import Backend, Offer, agree
from elastrain.elastic.comm.channel import Channels, Purpose
from elastrain.elastic.comm.handshake import Identity
from elastrain.elastic.comm.header import Kind, Label, RanksDiverged
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock.devices import Devices
from elastrain.elastic.comm.stock.watchdog import Mates, mates_of
from elastrain.elastic.comm.tcp_allreduce import StagedAllreduce, TcpAllreduce
from elastrain.elastic.comm.transport import Transport, completed, described, first_line

FAREWELL_SECONDS = 10.0
"""Bound of waiting, outside of the training thread, until all ranks have left a healthy generation."""


class GenerationBroken(RuntimeError):
    """A peer of this generation was lost, or it was aborted; this rank has committed nothing of the step."""

    def __init__(self, generation: int, cause: str) -> None:
        super().__init__(f"generation {generation} is broken: {cause}")
        self.generation = generation
        self.cause = cause


class Communicator:
    """Connects the ranks of one generation, beside the default group of ``torch.distributed``.

    Thread safety: one thread at a time runs collectives; any thread may call :meth:`abort` and :meth:`call_off`.
    """

    def __init__(
        self,
        *,
        of: Generation,
        rank: int,
        listener: Listener,
        offer: Offer | None = None,
        device: torch.device | None = None,
        called_off: Callable[[], bool] = lambda: False,
        failed: Callable[[int, BaseException], None] = lambda _number, _error: None,
    ) -> None:
        """Connect to all peers of generation ``of``; returns when every peer is connected to this rank.

        ``listener``: of this rank's process. ``offer``: how this rank could sum
        gradients (default: TCP). ``device``: where it computes them. ``failed(number, error)`` is called once, in any
        thread, if this rank itself fails after that. Blocks up to ``CONNECT_SECONDS`` for each transport. Raises
        :class:`PeerLost` if a peer does not come, and soon after ``called_off()`` that or
        :class:`elastrain.elastic.comm.transport.CalledOff`; any other exception is this rank's own failure.
        """
        self.of, self.rank, self.world_size = of, rank, of.world_size
        self._lock = threading.Lock()
        self._on_failure: Callable[[int, BaseException], None] = lambda *_: None  # a failure to connect is raised
        self._broken: str | None = None
        self.broken_at: float | None = None
        """Monotonic time at which the generation broke or was called off; None while it is healthy."""
        self._called_off: str | None = None
        self.failure: BaseException | None = None
        """Why this rank itself cannot go on; None: it can. Its process has to end with this error."""
        self.unsent: BaseException | None = None
        """Why this rank could not send its state, which it keeps; None: it could."""
        self.step = 0
        """Committed steps: the step that the sums belong to. Set by the owner."""
        self.diverged: str | None = None
        """How the ranks differ in what they do; None if they do not. No other generation mends it."""
        self.mesh: Mesh | None = None
        """This rank's connections to its peers; None for a generation of one rank, and after :meth:`close`."""
        self._tcp: TcpAllreduce | None = None
        self._nccl: nccl.Nccl | None = None
        self._transports: list[Transport] = []
        self.devices = Devices(self)
        """What is under way on devices, of NCCL and of sums that are staged."""
        self._ends: list[Callable[[str], None]] = []
        self.address = listener.address
        """This host's, on the network of the collectives."""
        self._channels = Channels(listener, Identity.of(of, rank))
        try:
            mine = {"channels": self._channels.invitation, "offer": (offer or Offer()).encode()}
            rows = meeting.exchange(of, rank, self._channels, mine, called_off)
            self._invitations = {r: row["channels"] for r, row in enumerate(rows)}
            self.choice = agree([Offer.decode(row["offer"]) for row in rows])
            """The transport of gradients that lie on devices, and the reason."""
            if of.world_size > 1:
                self._form(device, called_off)
        except BaseException as e:
            self.abort(first_line(e))
            self.close()
            raise
        self._on_failure, self.connected_at = failed, time.monotonic()

    @property
    def generation(self) -> int:
        """Its number."""
        return self.of.number

    @property
    def broken(self) -> str | None:
        """Why the collectives of the step under way do not count; None: they count."""
        return self._broken

    @property
    def over(self) -> str | None:
        """Why no further step can be computed in this generation; None while it is healthy."""
        return self._broken or self._called_off

    @property
    def sums_by(self) -> str:
        """The transport of gradients, for logs: "nccl" or "tcp"."""
        return "tcp" if self._nccl is None else "nccl"

    # -- the end of a generation -------------------------------------------------------------------------------------
    def call_off(self, cause: str) -> None:
        """Another generation replaces this one: no further collective and no further step begins.

        The step under way counts if this rank has voted for it and receives the sum of the votes, since a rank that is
        not in the next generation may have received it (:meth:`Mesh.call_off`). As long as this rank has sums under way
        on a device it has not voted, and no rank can commit: then the generation ends at once, as does one of a single
        member, whose step no other member can share. Idempotent, any thread, does not block.
        """
        with self._lock:
            if self._broken is not None or self._called_off is not None:
                return
            self._called_off, self.broken_at = cause, time.monotonic()
        if (mesh := self.mesh) is None or self.of.size == 1 or self.devices.since is not None:
            self.abort(cause)
        else:
            mesh.call_off()
            self._end(cause)

    def abort(self, cause: str) -> None:
        """End every collective that is blocked, on this rank and, by the closed connections, on its peers.

        Idempotent, any thread, does not block. The first cause stays, and is recorded first. If a device does not
        return, the rank ends itself (:mod:`elastrain.elastic.comm.stock.watchdog`).
        """
        with self._lock:
            if self._broken is None:
                self._broken, self.broken_at = self._called_off or cause, self.broken_at or time.monotonic()
            cause = self._broken
        if self._nccl is not None:
            self._nccl.abort(cause)
        self._channels.shut()
        self._end(cause)

    def pass_on(self) -> None:
        """A neighbour has left: end this rank's connections for the others, as of :meth:`Mesh.call_off`."""
        if (mesh := self.mesh) is not None:
            mesh.call_off()

    def ends_with(self, end: Callable[[str], None]) -> None:
        """Call ``end(cause)`` when no further step can be computed in this generation; it may be called again.

        Any thread calls it; it must not block.
        """
        self._ends.append(end)
        if (cause := self.over) is not None:
            end(cause)

    def _end(self, cause: str) -> None:
        for end in self._ends:
            end(cause)

    def close(self, *, together: bool = False) -> None:
        """Release the connections, outside of the training thread.

        ``together``: all ranks leave the generation, healthy, at the same step boundary. They then wait for each other,
        bounded, so that no NCCL communicator ends while another rank uses it.
        """
        self.devices.stop()
        if self._nccl is not None and together and self._farewell():
            self._nccl.finish()
        with self._lock:
            self._broken = self._broken or "closed"
        if self._nccl is not None:
            self._nccl.close()
        self._channels.shut()
        if self._tcp is not None:
            self._tcp.close()
            self.mesh = self._tcp = None  # release the memory of a sum that failed
            self._transports = []
        self._channels.close()

    @contextlib.contextmanager
    def guard(self, *, sends: bool = False) -> Iterator[None]:
        """Around operations with peers. Turns a lost peer into :class:`GenerationBroken`, and aborts for the others.

        Any other exception is this rank's own failure: it leaves the block as it is, and the peers go on without this
        rank. ``sends``: the block sends this rank's state. A rank that cannot do that keeps its state, so that the
        generation is broken instead (:attr:`unsent`).
        """
        try:
            yield
        except GenerationBroken:
            raise
        except BaseException as e:
            self._failed(e, sends=sends)
            if self.failure is not None:
                raise
            raise GenerationBroken(self.generation, self._broken or first_line(e)) from e
        if self._broken is not None:
            raise GenerationBroken(self.generation, self._broken)

    def fail(self, cause: str) -> NoReturn:
        """Break the generation for a reason that the caller has found. Raises :class:`GenerationBroken`."""
        self.abort(cause)
        raise GenerationBroken(self.generation, cause)

    def fail_here(self, error: BaseException) -> None:
        """This rank itself has failed: its peers must not wait for it. Any thread; the first ``error`` stays."""
        with self._lock:
            first, self.failure = self.failure is None, self.failure or error
        self.abort(f"rank {self.rank} has failed itself: {described(error)}")
        if first:
            self._on_failure(self.generation, error)

    def _failed(self, error: BaseException, *, sends: bool = False) -> None:
        """An operation with peers has failed. Any thread."""
        if isinstance(error, RanksDiverged):
            self.diverged = self.diverged or str(error)
        if isinstance(error, RanksDiverged | PeerLost):
            self.abort(first_line(error))
        elif sends and isinstance(error, Exception):
            self.unsent = self.unsent or error
            self.abort(f"rank {self.rank} cannot send its state: {described(error)}")
        else:
            self.fail_here(error)

    def _farewell(self) -> bool:
        """Whether every rank has left the generation and none is blocked in it."""
        if self._broken is not None:
            return False
        timer = threads.start_timer(FAREWELL_SECONDS, self.abort, f"no farewell within {FAREWELL_SECONDS:g} s")
        try:
            self.all_gather_ints([self.rank], Kind.FAREWELL)
        except GenerationBroken:
            return False
        finally:
            timer.cancel()
        return True

    # -- collectives of the host (each raises GenerationBroken) --------------------------------------------------------
    def all_gather_ints(self, values: list[int], kind: Kind = Kind.ENTRY) -> list[list[int]]:
        """The ``values`` of every rank, in rank order; every rank passes the same number of them."""
        table = torch.zeros(self.world_size, len(values), dtype=torch.int64)
        table[self.rank] = torch.tensor(values, dtype=torch.int64)
        self._sum_on_host(table, kind)
        rows: list[list[int]] = table.tolist()
        return rows

    def all_gather_bytes(self, mine: bytes, kind: Kind = Kind.FORM) -> list[bytes]:
        """``mine`` of every rank, in rank order; lengths may differ."""
        return self.all_gather_sized(mine, [size for (size,) in self.all_gather_ints([len(mine)], kind)], kind)

    def all_gather_sized(self, mine: bytes, sizes: Sequence[int], kind: Kind) -> list[bytes]:
        """As :meth:`all_gather_bytes`, if every rank knows the ``sizes`` of all, in bytes and by rank."""
        if not any(sizes):
            return [b""] * self.world_size
        table = torch.zeros(self.world_size, max(sizes), dtype=torch.uint8)
        if mine:
            table[self.rank, : len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        self._sum_on_host(table, kind)
        return [row[:size].numpy().tobytes() for row, size in zip(table, sizes, strict=True)]

    def _sum_on_host(self, table: torch.Tensor, kind: Kind) -> None:
        with self.guard():
            if self._broken is None and (tcp := self._tcp) is not None:
                tcp.sum(table, Label(kind, self.step)).wait()

    # -- connections between two ranks ---------------------------------------------------------------------------------
    def accept(self, ranks: Collection[int], purpose: Purpose) -> dict[int, socket.socket]:
        """Connections from ``ranks``, each of which calls :meth:`connect`. Raises :class:`PeerLost` if aborted."""
        return self._channels.accept(ranks, purpose)

    def connect(self, rank: int, purpose: Purpose, called_off: Callable[[], bool] = lambda: False) -> socket.socket:
        """A connection to ``rank``, which calls :meth:`accept`. Raises :class:`PeerLost`."""
        return self._channels.connect(rank, self._invitations[rank], purpose, called_off)

    @contextlib.contextmanager
    def exchange(
        self, nbytes: int, peers: Collection[int] | None = None, kind: Kind = Kind.GRADIENTS
    ) -> Iterator[Mesh]:
        """This rank's connections to its peers, for one exchange of ``nbytes``.

        ``peers``: as of :meth:`Mesh.announce`; :meth:`reach` comes before. Raises :class:`GenerationBroken`.
        """
        with self._begun() as mesh:
            label = Label(kind, self.step)
            if peers is None:
                tree.reach(mesh, self.rank, label)
            mesh.announce(label, nbytes, peers)
            yield mesh

    def reach(self, peers: Collection[int]) -> None:
        """Connect to ``peers`` before an exchange with them alone (:func:`elastrain.elastic.comm.tree.reach`)."""
        if self.world_size > 1:
            with self._begun() as mesh:
                tree.reach(mesh, self.rank, Label(Kind.FORM, self.step), peers)

    @contextlib.contextmanager
    def _begun(self) -> Iterator[Mesh]:
        with self.guard():
            if (mesh := self.mesh) is None:
                raise PeerLost("the generation was called off")
            with mesh.exchanging():
                yield mesh

    # -- sums of gradients ---------------------------------------------------------------------------------------------
    def sum_bucket(self, buffer: torch.Tensor, kind: Kind = Kind.GRADIENTS) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum ``buffer`` over all ranks, in place, without dividing.

        A failure marks the generation broken and leaves any values in the buffer. After waiting for its sums the caller
        checks :attr:`broken`, and discards the step; :attr:`failure` then ends this rank. An exception inside autograd
        would leave through user code.
        """
        if self._broken is None and self.world_size > 1:
            try:
                return self._sum(self._transport_of(buffer), buffer, Label(kind, self.step))
            except Exception as e:
                self._failed(e)
        return completed(buffer)

    def sum_together(
        self, *buffers: torch.Tensor, kind: Kind = Kind.GRADIENTS
    ) -> list[torch.futures.Future[torch.Tensor]]:
        """As :meth:`sum_bucket` for each of ``buffers``, on the host; small ones add no time to a large one."""
        if self._broken is None and (tcp := self._tcp) is not None:
            try:
                return tcp.sum_together(*buffers, label=Label(kind, self.step))
            except PeerLost as e:
                self._failed(e)
        return [completed(buffer) for buffer in buffers]

    def await_sums(self) -> None:
        """Return when no sum of this rank is under way on a device: the host's only wait for it in a step.

        For the thread whose current streams wait for the sums.
        """
        self.devices.wait()

    def _transport_of(self, buffer: torch.Tensor) -> Transport:
        """The same on all ranks. Raises ``TypeError`` if no transport sums tensors of this kind."""
        for transport in self._transports:
            if transport.takes(buffer):
                return transport
        raise TypeError(f"no transport sums tensors on {buffer.device} with layout {buffer.layout}")

    def _sum(self, transport: Transport, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
        if transport is not self._tcp:
            self.devices.uses(buffer.device)
        if transport is self._nccl:  # before the check: call_off() sets the cause first and reads this last
            self.devices.spins()
            if self._called_off is not None:
                raise PeerLost(self._called_off)
        return transport.sum(buffer, label)

    # -- forming -------------------------------------------------------------------------------------------------------
    def _form(self, device: torch.device | None, called_off: Callable[[], bool]) -> None:
        sparse = Backend.NCCL in (self.choice.backend, self.choice.inner)
        peers = tree.neighbours(self.rank, self.world_size) if sparse else tree.others(self.rank, self.world_size)
        dial = partial(self._channels.meet, self._invitations, Purpose.SUMS)
        connections = dial(peers, called_off)
        self.mesh = Mesh(self.rank, connections, self._channels.shut, self.world_size if sparse else None, dial)
        self._tcp = TcpAllreduce(self.mesh, self.rank, self._failed)
        self._transports = [self._tcp, StagedAllreduce(self._tcp, self._failed)]
        self.devices = Devices(self, list(connections.values()))
        if sparse:
            self.devices.watch_connections()
        if self.choice.backend is Backend.NCCL:
            assert device is not None, "a rank that offers NCCL has a device"
            self._form_nccl(device, called_off)

    def _form_nccl(self, device: torch.device, called_off: Callable[[], bool]) -> None:
        mates = self.form_mates(range(self.world_size), called_off)
        store = nccl.IdStore(self.generation, self.rank, self.all_gather_bytes)
        try:
            self._nccl = nccl.form(store, self.rank, self.world_size, device, mates=mates, called_off=called_off)
        except BaseException:
            mates.close()
            raise
        self._transports.insert(0, self._nccl)
        if self._broken is not None:  # an abort while NCCL formed has not reached it
            self._nccl.abort(self._broken)
        self.devices.watch(self._nccl, mates)

    def form_mates(self, among: Collection[int], called_off: Callable[[], bool] = lambda: False) -> Mates:
        """Connections to the ranks ``among`` which are those whose device memory NCCL may map."""
        ranks = [r for r in mates_of(self.of, self.rank) if r in among]
        found = self._channels.meet(self._invitations, Purpose.MATES, ranks, called_off)
        return Mates({rank: self._channels.hand_over(connection) for rank, connection in found.items()})
