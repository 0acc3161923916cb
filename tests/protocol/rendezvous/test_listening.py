"""Servers answer on the family of the address by which their clients find them."""

from __future__ import annotations

import asyncio
import errno
import socket
import urllib.request
from contextlib import closing

import pytest

from elastrain import listening
from elastrain_operator.health import answering
from elastrain_operator.metrics.server import MetricsServer


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
FAMILIES = ["127.0.0.1", pytest.param("::1", marks=ipv6)]


def answers(address: str, port: int) -> bool:
    with socket.create_connection((address, port), timeout=5):
        return True


@pytest.mark.parametrize("address", FAMILIES)
def test_a_server_on_an_address_listens_on_its_family(address: str) -> None:
    with listening.on(address) as server:
        assert answers(address, server.getsockname()[1])


@pytest.mark.parametrize("address", FAMILIES)
def test_a_server_on_all_addresses_listens_on_both_families(address: str) -> None:
    with listening.everywhere() as server:
        assert answers(address, server.getsockname()[1])


@pytest.mark.parametrize("error", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_ipv4_serves_alone_if_the_system_has_switched_ipv6_off(monkeypatch, error: int) -> None:
    made = socket.create_server

    def create(address, *, family=socket.AF_INET, **options):
        if family == socket.AF_INET6:
            raise OSError(error, "IPv6")
        return made(address, family=family, **options)

    monkeypatch.setattr(socket, "create_server", create)
    with listening.everywhere() as server:
        assert answers("127.0.0.1", server.getsockname()[1])


def test_a_taken_port_is_an_error_on_all_addresses_too() -> None:
    with listening.everywhere() as server, pytest.raises(OSError, match="in use"):
        listening.everywhere(server.getsockname()[1])


@pytest.mark.parametrize("address", FAMILIES)
def test_metrics_are_served_on_both_families(address: str) -> None:
    with (
        closing(MetricsServer(lambda: b"things_total 3.0\n", 0)) as server,
        urllib.request.urlopen(f"http://{listening.bracketed(address)}:{server.port}/metrics", timeout=5) as answer,
    ):
        assert b"things_total" in answer.read()


@pytest.mark.parametrize("address", FAMILIES)
def test_health_is_served_on_both_families(address: str) -> None:
    with listening.everywhere() as free:
        port = free.getsockname()[1]

    async def serve() -> bool:
        async with answering(port, lambda: {"a": 1}):
            return await asyncio.to_thread(answers, address, port)

    assert asyncio.run(serve())


def test_the_machine_s_own_address_is_of_ipv6_only_without_ipv4(monkeypatch) -> None:
    assert listening.loopback() == "127.0.0.1"

    class Bare(socket.socket):
        def bind(self, address) -> None:
            raise OSError(errno.EADDRNOTAVAIL, "IPv4")

    monkeypatch.setattr(socket, "socket", Bare)
    assert listening.loopback() == "::1"
