"""``elastrain dashboard``: serves the page until Ctrl-C, with the permissions of the kubeconfig or the pod."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import structlog
from aiohttp import web

from elastrain import listening as sockets
from elastrain.api import names
from elastrain_cli.client.connection import Connection
from elastrain_cli.cluster.output import Misused, Place, answers
from elastrain_cli.shell.printing import print_now
from elastrain_dashboard.access import Guard
from elastrain_dashboard.board import Board
from elastrain_dashboard.server import application
from elastrain_resource.serving import serving


class CannotListen(Exception):
    """The address cannot be listened at; the message names the option and the remedy."""


@answers
def dashboard(
    place: Place,
    namespaces: tuple[str, ...],
    *,
    all_namespaces: bool,
    address: str,
    port: int,
    keyed: bool,
    authenticate: bool,
    hosts: tuple[str, ...],
) -> int:
    """``elastrain dashboard``; returns the exit code."""

    async def run() -> None:
        connection = await Connection.open(context=place.context)
        shown = () if all_namespaces else namespaces or (connection.namespace,)
        await serve(
            connection,
            namespaces=shown,
            address=address,
            port=port,
            keyed=keyed,
            authenticate=authenticate,
            hosts=hosts,
            say=print_now,
        )

    try:
        asyncio.run(run())
    except CannotListen as error:
        raise Misused(str(error)) from error
    return 0


async def serve(
    connection: Connection,
    *,
    namespaces: tuple[str, ...],
    address: str,
    port: int,
    keyed: bool,
    authenticate: bool = False,
    hosts: tuple[str, ...] = (),
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM. ``namespaces``: empty: all. ``port`` 0: any free port. ``authenticate``: users log
    in with a token of the cluster. ``hosts``: names that the page is reached by. ``say`` receives the page's address.

    Raises :class:`~elastrain_cli.client.ClusterError` if the cluster is unreadable, and :class:`CannotListen`.
    """
    log_to_stderr()
    try:
        place = f"/namespaces/{namespaces[0]}" if namespaces else ""
        jobs = f"/apis/{names.API_VERSION}{place}/{names.PLURAL}"
        await connection.call("GET", jobs, "list jobs", query={"limit": "1"})  # fail now rather than show an empty page
        key = secrets.token_urlsafe(12) if keyed else ""
        board = Board(connection, namespaces, datetime.now(UTC))
        guard = Guard(connection, board.used_namespaces, time.monotonic) if authenticate else None
        app = application(
            board, lambda: datetime.now(UTC), key=key, hosts=(*hosts, *filter(None, [address])), guard=guard
        )
        async with listening(app, address, port) as found:
            say(_where(address, found, key, namespaces))
            await _until_stopped()
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def listening(app: web.Application, address: str, *ports: int) -> AsyncIterator[int]:
    """Serve ``app`` at the first free port of ``ports``; 0: any. Yields the port. Raises :class:`CannotListen`.

    ``address``: empty: all addresses of this host, of IPv4 and IPv6.
    """
    for port in ports:
        try:
            found = sockets.on(address, port) if address else sockets.everywhere(port)
            break
        except OSError as error:
            if port == ports[-1]:
                raise CannotListen(
                    f"--address {address} --port {port}: cannot listen there ({error.strerror}); "
                    "choose another port, or 0 for any free port"
                ) from error
    async with serving(app, found):
        yield int(found.getsockname()[1])


async def _until_stopped() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _where(address: str, port: int, key: str, namespaces: tuple[str, ...]) -> str:
    everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104
    host = everywhere.get(address, sockets.bracketed(address))
    shown = f"namespace {', '.join(namespaces)}" if namespaces else "all namespaces"
    return f"http://{host}:{port}/{f'?key={key}' if key else ''}  (jobs of {shown}; Ctrl-C stops)"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log JSON, or plain text on a terminal, to stderr: standard output carries the address."""
    render = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
