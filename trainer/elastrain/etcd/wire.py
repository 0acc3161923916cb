"""The only file that touches ``etcd3`` and gRPC: calls with deadlines, failover, tokens; errors in our own words.

Of ``etcd3`` it uses the generated protocol (messages and stubs), not the client class: that one forgets a failed
endpoint for 300 s, drops the server's error text, never renews a token, and shares one watch thread whose end takes all
watches with it. What is left of a client here is small enough to read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import etcd3.etcdrpc as rpc
import grpc
from etcd3.utils import prefix_range_end

from elastrain.etcd.config import EtcdConfig
from elastrain.etcd.errors import Compacted, EtcdDenied, EtcdError, EtcdUnavailable, LeaseLost

messages = rpc
"""Protocol messages, for the other files of this package."""

_CHANNEL_OPTIONS = [
    # Reconnect within about a second of etcd's return, instead of gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection whose peer vanished without a word is noticed in 15 s (etcd refuses pings more often than every 5 s).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # etcd is inside the cluster; a proxy meant for the internet must not see it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # All records of a job with thousands of members are listed at once (gRPC's default is 4 MiB).
    ("grpc.max_receive_message_length", 64 << 20),
]
# A member that lost its quorum ends streams at once instead of serving silence.
_REQUIRE_LEADER = ("hasleader", "true")
_STUBS = {
    "auth": rpc.AuthStub,
    "kv": rpc.KVStub,
    "lease": rpc.LeaseStub,
    "watch": rpc.WatchStub,
    "maintenance": rpc.MaintenanceStub,
}


class Stream:
    """One bidirectional stream. Iterating it raises the errors of :mod:`elastrain.etcd.errors`."""

    def __init__(self, call: Any, explain: Callable[[grpc.RpcError], EtcdError]) -> None:
        self._call = call
        self._explain = explain

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def cancel(self) -> None:
        """End it; safe from any thread, more than once."""
        self._call.cancel()


class Wire:
    """Connections to the endpoints of one cluster. Thread-safe."""

    def __init__(self, config: EtcdConfig) -> None:
        """Connects lazily. Raises ``OSError`` if a certificate file cannot be read."""
        self.config = config
        self._lock = threading.Lock()
        self._current = 0
        self._token = ""
        self.closed = False
        self._channels = [self._channel(endpoint) for endpoint in config.endpoints]
        self._stubs: list[dict[str, Any]] = [
            {name: stub(channel) for name, stub in _STUBS.items()} for channel in self._channels
        ]

    def _channel(self, endpoint: str) -> grpc.Channel:
        config = self.config
        if config.ca is None:
            return grpc.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            config.ca.read_bytes(),
            config.key.read_bytes() if config.key else None,
            config.cert.read_bytes() if config.cert else None,
        )
        return grpc.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)

    @property
    def endpoint(self) -> str:
        """The endpoint in use, ``host:port``."""
        return self.config.endpoints[self._current]

    def unary(self, service: str, method: str, request: Any, *, timeout: float, what: str) -> Any:
        """One call, bounded by ``timeout`` seconds, tried on each endpoint at most once (and again with a new token).

        ``what`` completes "tried to ..." in errors. Raises ``EtcdUnavailable``, ``EtcdDenied`` or ``EtcdError``.
        """

        def attempt(stub: Any, metadata: list[tuple[str, str]], left: float) -> Any:
            return getattr(stub, method)(request, timeout=left, metadata=metadata)

        return self._attempts(service, attempt, timeout, what)

    def first(self, service: str, method: str, request: Any, *, timeout: float, what: str) -> Any:
        """Send one request on a new stream, return its first answer, end the stream. Errors as :meth:`unary`."""

        def attempt(stub: Any, metadata: list[tuple[str, str]], left: float) -> Any:
            call = getattr(stub, method)(iter((request,)), timeout=left, metadata=[*metadata, _REQUIRE_LEADER])
            try:
                return next(call)
            finally:
                call.cancel()

        return self._attempts(service, attempt, timeout, what)

    def stream(self, service: str, method: str, requests: Iterator[Any], *, what: str) -> Stream:
        """Open a stream on the endpoint in use; the caller reopens it when it ends. Errors come from iterating it."""
        token = self._authenticate(timeout=5.0, what=what)
        with self._lock:
            index, stub = self._current, self._stubs[self._current][service]
        with self._open(what):
            call = getattr(stub, method)(requests, metadata=[*_metadata(token), _REQUIRE_LEADER])

        def explain(error: grpc.RpcError) -> EtcdError:
            explained = self._explain(error, index, what)
            if isinstance(explained, EtcdUnavailable):
                self._fail_over(index)
            elif _is_stale_token(error):
                self._forget_token(token)
                return EtcdUnavailable(self.endpoint, what, "the token has expired, a new one is needed")
            return explained

        return Stream(call, explain)

    def close(self) -> None:
        self.closed = True
        for channel in self._channels:
            channel.close()

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _attempts(
        self, service: str, attempt: Callable[[Any, list[tuple[str, str]], float], Any], timeout: float, what: str
    ) -> Any:
        deadline = time.monotonic() + timeout
        failure: EtcdError | None = None
        for _ in range(len(self._channels) + 1):  # one more than endpoints: a new token costs an attempt
            left = deadline - time.monotonic()
            if left <= 0:
                break
            token = self._authenticate(timeout=left, what=what)
            with self._lock:
                index, stub = self._current, self._stubs[self._current][service]
            try:
                with self._open(what):
                    return attempt(stub, _metadata(token), left)
            except grpc.RpcError as error:
                failure = self._explain(error, index, what)
                if _is_stale_token(error):
                    self._forget_token(token)
                elif isinstance(failure, EtcdUnavailable) and len(self._channels) > 1:
                    self._fail_over(index)
                else:
                    raise failure from None
        raise failure or EtcdUnavailable(self.endpoint, what, f"no answer within {timeout:g} s")

    def _authenticate(self, *, timeout: float, what: str) -> str:
        """The current token; asks for one if there is none. Empty where etcd has authentication switched off."""
        config = self.config
        if config.password_file is None:
            return ""
        with self._lock:
            if self._token:
                return self._token
            index, stub = self._current, self._stubs[self._current]["auth"]
        request = rpc.AuthenticateRequest(name=config.username, password=config.password_file.read_text().rstrip("\n"))
        try:
            with self._open(what):
                token = str(stub.Authenticate(request, timeout=timeout).token)
        except grpc.RpcError as error:
            if "authentication is not enabled" in str(error.details()):
                return ""
            failure = self._explain(error, index, f"log in ({what})")
            if isinstance(failure, EtcdUnavailable):
                self._fail_over(index)
            raise failure from None
        with self._lock:
            self._token = token
        return token

    @contextmanager
    def _open(self, what: str) -> Iterator[None]:
        """gRPC says ``ValueError`` when its channel was closed."""
        try:
            yield
        except ValueError as error:
            if self.closed:
                raise EtcdUnavailable(self.endpoint, what, "this client was closed") from error
            raise

    def _forget_token(self, token: str) -> None:
        with self._lock:
            if self._token == token:
                self._token = ""

    def _fail_over(self, failed: int) -> None:
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._channels)

    def _explain(self, error: grpc.RpcError, index: int, what: str) -> EtcdError:
        code, detail = error.code(), str(error.details() or "")
        endpoint = self.config.endpoints[index]
        denied = code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or (
            code is grpc.StatusCode.INVALID_ARGUMENT and ("authentication failed" in detail or "user name" in detail)
        )
        if denied:
            return EtcdDenied(self.endpoint, self.config.username, what, detail)
        if code is grpc.StatusCode.NOT_FOUND and "lease" in detail:
            return LeaseLost(what, detail)
        if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in detail:
            return Compacted(what, detail)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EtcdUnavailable(endpoint, what, "no answer in time")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
            return EtcdUnavailable(endpoint, what, detail)
        return EtcdError(what, f"{detail} ({code.name})")


def range_end(prefix: str) -> bytes:
    """The end of the key range that starts with ``prefix``."""
    return bytes(prefix_range_end(prefix.encode()))


def _metadata(token: str) -> list[tuple[str, str]]:
    return [("token", token)] if token else []


def _is_stale_token(error: grpc.RpcError) -> bool:
    # Expired simple tokens, tokens of before a restart of etcd, or of before a change of its users.
    detail = str(error.details() or "")
    return "invalid auth token" in detail or "revision in auth store is old" in detail
