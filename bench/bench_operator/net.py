"""Calls of the API server over one connection that is kept."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

TIMEOUT = 120.0


class Refused(Exception):
    """The API server refused a call; the message is its own."""


class Api:
    """One connection: not to be shared by threads. Every call may raise ``OSError`` and :class:`Refused`."""

    def __init__(self, port: int, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=TIMEOUT)
        self._headers = {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> dict[str, Any]:
        return dict(json.loads(self._answer(method, path, body, content)))

    def get(self, path: str, absent: bool = False) -> dict[str, Any]:
        """``absent``: a missing object is returned as an empty one."""
        try:
            return self.call("GET", path)
        except Refused as error:
            if absent and "not found" in str(error):
                return {}
            raise

    def merge(self, path: str, body: object) -> dict[str, Any]:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def text(self, path: str) -> str:
        return self._answer("GET", path, None, "application/json").decode()

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Events of a watch, until it ends. The connection can be used for nothing else then."""
        self._connection.timeout = None  # events may be far apart
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise Refused(f"GET {path}: {response.read()[:500]!r}")
        for line in iter(response.readline, b""):
            yield json.loads(line)

    def close(self) -> None:
        """Also from another thread: ends a watch."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _answer(self, method: str, path: str, body: object, content: str) -> bytes:
        data = None if body is None else json.dumps(body)
        headers = {**self._headers, "Content-Type": content}
        try:
            response, text = self._send(method, path, data, headers)
        except (http.client.RemoteDisconnected, ssl.SSLEOFError, BrokenPipeError):
            # Idle for too long; the API server has not received this call.
            self._connection.close()
            response, text = self._send(method, path, data, headers)
        if response.status >= 400:
            raise Refused(f"{method} {path}: HTTP {response.status}: {text[:500].decode(errors='replace')}")
        return text

    def _send(
        self, method: str, path: str, data: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            return response, response.read()
        except (http.client.HTTPException, OSError):
            self._connection.close()  # the next call begins with a new one
            raise
