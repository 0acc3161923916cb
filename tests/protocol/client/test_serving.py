"""Servers of operator and dashboard on the loopback: clients that are slow, silent or very many keep no other away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
from aiohttp import ClientSession, web

from conditions import until
from elastrain import listening
from elastrain_resource.serving import serving

SECONDS = 0.3
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def answer(request: web.Request) -> web.Response:
    return web.Response(body=b"x" * int(request.query.get("bytes", 2)), headers={"Connection": "keep-alive"})


async def read_body(request: web.Request) -> web.Response:
    return web.Response(text=str(len(await request.read())))


async def wait(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(3 * SECONDS)
    await response.write(b"the end")
    return response


def in_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: object) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 30))

    return run


@contextlib.asynccontextmanager
async def served(most: int = 20) -> AsyncIterator[int]:
    listener = listening.on("127.0.0.1")
    app = web.Application()
    app.add_routes([web.get("/", answer), web.post("/", read_body), web.get("/wait", wait), web.get("/stream", stream)])
    async with serving(app, listener, seconds=SECONDS, most=most):
        yield listener.getsockname()[1]


async def get(port: int, path: str = "/") -> bytes:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as found:
        return await found.read()


SLOW = {
    "silent": (b"", b""),
    "a byte of its head after the other": (HEAD, b"x"),
    "a header after the other": (HEAD, b"x: y\r\n"),
    "a byte of its body after the other": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b"x"),
    "a second request": (HEAD + b"\r\nGET /", b"x"),
    "an answer that takes long": (b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n", b""),
}


@pytest.mark.parametrize("client", SLOW)
@in_a_loop
async def test_a_slow_client_is_disconnected_after_the_time_of_a_request(client):
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        first, drop = SLOW[client]
        writer.write(first)

        async def dripping() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(SECONDS / 5)
                    writer.write(drop)
                    await writer.drain()

        task = asyncio.create_task(dripping())
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(1000), 10):
                pass
        assert time.monotonic() - began < 10 * SECONDS + 1
        task.cancel()
        writer.close()
        assert await get(port) == b"xx"


@in_a_loop
async def test_a_client_that_does_not_read_its_answer_is_disconnected():
    async with served() as port:
        with socket.socket() as unread:
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(("127.0.0.1", port))
            unread.sendall(b"GET /?bytes=50000000 HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(3 * SECONDS)
            unread.settimeout(10)

            def read() -> int:
                return sum(iter(lambda: len(unread.recv(1 << 20)), 0))

            assert await asyncio.to_thread(read) < 50_000_000


@in_a_loop
async def test_a_stream_lasts_longer_than_a_request():
    async with served() as port:
        assert await get(port, "/stream") == b"the end"


@in_a_loop
async def test_a_newer_client_takes_the_place_of_the_oldest_one_that_asks_for_nothing():
    async with served(most=20) as port:
        streaming = asyncio.create_task(get(port, "/stream"))
        await asyncio.sleep(0.05)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        assert await get(port) == b"xx"
        ended = lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent)  # noqa: E731
        await until(lambda: ended() >= 40, "the oldest are disconnected")
        assert await streaming == b"the end", "a request in progress goes on"
        for _, writer in silent:
            writer.close()
