"""Sockets of servers: each listens on the family of the address by which its clients find it."""

from __future__ import annotations

import errno
import socket

BACKLOG = 512
"""Connections that the kernel holds until they are accepted."""
_NO_IPV6 = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def on(address: str, port: int = 0, *, backlog: int = BACKLOG) -> socket.socket:
    """On ``address``, a name or a number, IPv4 or IPv6; port 0: any free one. Raises ``OSError``."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family, backlog=backlog)


def loopback() -> str:
    """The address of this machine for itself: 127.0.0.1, or ::1 where it has no IPv4."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def bracketed(address: str) -> str:
    """An address as the host of a URL or of ``host:port``."""
    return f"[{address}]" if ":" in address else address


def everywhere(port: int = 0, *, backlog: int = BACKLOG) -> socket.socket:
    """On all addresses of this host: IPv6 and IPv4, if it has both. Raises ``OSError``, if the port is taken.

    A pod's address may be of either family, also in a cluster that has both.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        except OSError as e:
            if e.errno not in _NO_IPV6:  # switched off by the system
                raise
    return socket.create_server(("", port), backlog=backlog)
