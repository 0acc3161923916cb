"""The dashboard answers on IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web

from elastrain_dashboard.command import listening


@pytest.mark.parametrize(
    ("address", "answers"),
    [("", {"127.0.0.1", "::1"}), ("127.0.0.1", {"127.0.0.1"}), ("::1", {"::1"})],
)
def test_page_answers_on_the_families_of_its_address(address, answers):
    async def who_answers() -> set[str]:
        found = set()
        async with listening(web.Application(), address, 0) as port:
            for host in ("127.0.0.1", "::1"):
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError:
                    continue
                writer.close()
                found.add(host)
        return found

    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert asyncio.run(who_answers()) == answers
