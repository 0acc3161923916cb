"""What real members cost at rest: ``Membership`` as an agent has it, each with its own connection to etcd."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

from elastrain.api.keys import JobKeys
from elastrain.api.records import Phase, Target
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.server import EtcdServer
from elastrain.rendezvous.membership import Membership
from rendezvous_harness.meter import Reading
from rendezvous_harness.results import AtRest

FORM_SECONDS = 30.0
SETTLE_SECONDS = 2.0
"""After the generation was formed, until nobody writes any more."""
_TCP_BYTES = struct.Struct("QQ")
_TCP_BYTES_AT = 120
"""Where ``bytes_acked`` and ``bytes_received`` are in Linux' ``struct tcp_info``."""


def measure(server: EtcdServer, members: int, ttl: int, seconds: float) -> AtRest:
    """Members of a job that may become large, of which only the leader watches all. Raises ``TimeoutError``."""
    assert server.pid is not None
    keys = JobKeys("bench", "rest", uuid.uuid4().hex)
    config = EtcdConfig((server.endpoint,))
    with ExitStack() as stack:
        operator = stack.enter_context(EtcdClient(config))
        operator.put(keys.target, Target(min=members, max=1000, desired=members).encode())
        joined = []
        for i in range(members):
            client = stack.enter_context(EtcdClient(config))
            member = Membership(client, keys, worker=f"w{i}", address="127.0.0.1", lease_ttl=ttl)
            member.start()
            stack.callback(member.leave)
            member.update(phase=Phase.READY, store_port=1)
            joined.append(member)
        for member in joined:
            if not member.wait_for(lambda view: view.generation is not None, FORM_SECONDS):
                raise TimeoutError(f"{member.id} has heard of no generation within {FORM_SECONDS:g} s")
        time.sleep(SETTLE_SECONDS)
        before, wire = Reading.take(server.endpoint, server.pid), _on_the_wire(server.endpoint)
        time.sleep(seconds)
        after, wire_after = Reading.take(server.endpoint, server.pid), _on_the_wire(server.endpoint)
    each = members * (after.at - before.at)
    return AtRest(
        members=members,
        ttl=ttl,
        renewals=round(after.since("renewals", before) / each, 3),
        sent=round((wire_after[0] - wire[0]) / each, 1),
        received=round((wire_after[1] - wire[1]) / each, 1),
        etcd_cpu=round((after.etcd_cpu - before.etcd_cpu) / each, 5),
        client_cpu=round((after.client_cpu - before.client_cpu) / each, 5),
    )


def _on_the_wire(endpoint: str) -> tuple[int, int]:
    """Bytes that this process has sent to and received from ``endpoint`` over all its open connections."""
    sent = received = 0
    for connection in _connections(int(endpoint.rpartition(":")[2])):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_BYTES_AT + _TCP_BYTES.size)
        acked, got = _TCP_BYTES.unpack_from(info, _TCP_BYTES_AT)
        sent, received = sent + acked, received + got
    return sent, received


def _connections(port: int) -> Iterator[socket.socket]:
    """Duplicates of this process's TCP connections to a port of this machine; closed when the next one is asked for."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - they vanish while we look, names are all we need
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.getpeername()[1] == port:
                    yield connection
