"""``GET /metrics``: in its own thread, so that a scrape of thousands of jobs delays no event.

One request at a time and ten seconds for each, so a client cannot occupy the operator with many. Plain HTTP without a
password: it serves job names and figures only. A service mesh and a NetworkPolicy provide TLS and access control.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from elastrain import listening

REQUEST_SECONDS = 10
STOP_SECONDS = 5.0

log = structlog.get_logger(__name__)


class MetricsServer:
    """Serves a text until it is closed."""

    def __init__(self, text: Callable[[], bytes], port: int, host: str = "") -> None:
        """``text`` is called for each scrape, in the server's thread. Port 0: any free port, see ``port``.

        ``host``: where to listen; empty: on all addresses.

        Raises ``OSError`` if the port is taken.
        """
        self._text = text
        self._server = make_server(host, port, self._answer, server_class=_Server, handler_class=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening; a scrape in progress gets a moment to finish."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_SECONDS)

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Uncompressed: compression would take the operator longer than it saves on the network."""
        if environ["REQUEST_METHOD"] != "GET":
            start("405 Method Not Allowed", [("Allow", "GET"), ("Content-Type", "text/plain")])
            return [b"only GET is supported\n"]
        if environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        text = self._text()
        start("200 OK", [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4), ("Content-Length", str(len(text)))])
        return [text]


class _Server(WSGIServer):
    def server_bind(self) -> None:
        """Without a reverse lookup of its own address, which takes seconds if DNS is slow; on IPv6 too."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        self.socket.close()
        self.socket = listening.on(host, port) if host else listening.everywhere(port)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its interface
        """A scraper disconnected or was too slow."""
        log.warning("metrics request failed", client=client_address[0], error=str(sys.exc_info()[1]))


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Suppressed: one line per scrape has no use."""
