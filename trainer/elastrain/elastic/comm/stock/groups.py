"""torch's own process groups over some ranks of a generation: NCCL between devices, gloo in the hosts' memory.

What runs inside a replica of a model is torch's: any collective, at the speed of its library. elastrain gives the ranks
to each other, over connections that are authenticated, and ends the group when one of them is lost. NCCL is ended as in
:mod:`elastrain.elastic.comm.stock.nccl`. Of gloo's calls none ends a collective that waits for a frozen peer
(``abort()``, ``shutdown()`` and ``set_timeout()`` return, and it waits on). Shutting the group's sockets ends it within
20 ms.

gloo's connections are neither authenticated nor checked: a rank that passes another size ends the process. On CPUs it
serves jobs that ask for it; elastrain's own connections are the default (:mod:`elastrain.elastic.comm.subgroup`).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from elastrain.elastic import torch_private
from elastrain.elastic.comm.backend import Backend
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock import nccl
from elastrain.elastic.comm.stock.nccl import IdStore
from elastrain.elastic.comm.subgroup import Subgroup
from elastrain.elastic.comm.transport import COLLECTIVE_SECONDS, CONNECT_SECONDS, first_line

_OF_GLOO = re.compile(r"^\[\S*/gloo/\S*\] ")
"""What gloo itself says begins with its source line; torch's checks of a call do not."""


def blames_peer(text: str) -> bool:
    """Whether an error of a collective is of a peer, the network, or a group that was ended. Pure. Others are this
    rank's own, such as a wrong call."""
    return _OF_GLOO.match(text) is not None or nccl.blames_peer(text)


def cause_in(text: str) -> str:
    """What an error says, without source line and advice. Pure."""
    return _OF_GLOO.sub("", text).partition(". This is typically")[0]


class StockGroup(Protocol):
    """A connected process group."""

    @property
    def group(self) -> dist.ProcessGroup:
        """torch's."""

    def abort(self, cause: str) -> None:
        """End all collectives under way; later ones fail. Idempotent, any thread, does not block."""

    def close(self) -> None:
        """Release everything, after an abort."""


def form(communicator: Communicator, ranks: Sequence[int], device: torch.device, backend: Backend) -> StockGroup:
    """Connect ``ranks`` of the generation, this rank among them, in this order; all of them call it.

    Raises :class:`PeerLost`, ``GenerationBroken``, and for NCCL also
    :class:`elastrain.elastic.comm.stock.nccl.InitialisationFailed`. Blocks up to ``CONNECT_SECONDS``.
    """
    among = Subgroup(communicator, ranks)
    store = IdStore(communicator.generation, among.place, among.gather_bytes, root_reads=backend is Backend.GLOO)
    if backend is Backend.GLOO:
        return Gloo(store, among.place, among.size, communicator.address)
    mates = communicator.form_mates(ranks)
    over = lambda: communicator.over is not None  # noqa: E731
    formed = nccl.form(store, among.place, among.size, device, mates=mates, called_off=over)
    communicator.devices.watch(formed, mates)
    return formed


class Gloo:
    """A group of gloo whose sockets can be shut."""

    def __init__(self, store: IdStore, rank: int, size: int, address: str) -> None:
        """``address``: this host's. Raises :class:`PeerLost` if a peer does not come."""
        bound = timedelta(seconds=CONNECT_SECONDS)
        backend = torch_private.gloo_backend(address, bound)  # not connected yet
        try:
            self.group = torch_private.process_group(store, rank, size, torch.device("cpu"), partial(backend, store))
        except RuntimeError as e:
            raise PeerLost(f"gloo could not connect the ranks of a group: {first_line(e)}") from e
        self.group.set_timeout(timedelta(seconds=COLLECTIVE_SECONDS))
        self._breaker = Breaker(store.values(), size - 1)

    def abort(self, cause: str) -> None:
        self._breaker.shut()

    def close(self) -> None:
        self._breaker.shut()
        self._breaker.close()
        del self.group


class Breaker:
    """Ends the connections of a gloo group.

    Holds duplicates of their descriptors, so that a number that gloo has closed, and the process has used again, is
    never shut.
    """

    def __init__(self, published: Sequence[bytes], least: int) -> None:
        """``published``: the addresses at which gloo listens, as all ranks have published them. Raises
        :class:`PeerLost` if fewer than ``least`` connections belong to them: gloo closes that to a peer that has ended.
        That this torch publishes addresses in this form is proven before (:mod:`elastrain.elastic.torch_probes`)."""
        self._held = list(_connections(published))
        if (found := len(self._held)) < least:
            self.close()
            raise PeerLost(f"{found} of {least} connections of a gloo group are left: a peer has ended")

    def shut(self) -> None:
        """Idempotent, any thread, does not block."""
        for connection in self._held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicates."""
        for connection in self._held:
            connection.close()


def _connections(published: Sequence[bytes]) -> Iterator[socket.socket]:
    """Duplicates of this process's connections, one of whose ends is an address in ``published``."""
    for name in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(name.name))
        except OSError:  # closed meanwhile
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        needles = _ends_of(connection)
        if any(needle in value for needle in needles for value in published):
            yield connection
        else:
            connection.close()


def _ends_of(connection: socket.socket) -> list[bytes]:
    """Family and port of both ends, as the kernel writes them; none if it connects no hosts."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return []
    try:
        ports = [connection.getsockname()[1], connection.getpeername()[1]]
    except OSError:
        return []
    return [connection.family.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") for port in ports]
