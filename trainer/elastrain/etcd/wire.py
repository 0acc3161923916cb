"""Calls of etcd over gRPC, with deadlines, failover, tokens, and elastrain's own errors.

It uses no client library. Those of Python block a failed endpoint for minutes, drop the server's error text, never
renew a token, or lose watches in silence (decision 0005).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from elastrain.etcd import tls
from elastrain.etcd.config import EtcdConfig
from elastrain.etcd.errors import Compacted, EtcdDenied, EtcdError, EtcdUnavailable, LeaseLost, TooLarge, WritesRefused
from elastrain.etcd.protocol import Service, messages

log = logging.getLogger(__name__)

_CHANNEL_OPTIONS = [
    # Reconnect within about 1 s of etcd's return, instead of gRPC's 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Detects a vanished peer within 15 s (etcd refuses pings more often than every 5 s).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # etcd is inside the cluster; an internet proxy must not carry its traffic.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A single list returns all records of a job with thousands of members (gRPC's default is 4 MiB).
    ("grpc.max_receive_message_length", 64 << 20),
]
_TOLD_BY_WORDS = (
    (LeaseLost, grpc.StatusCode.NOT_FOUND, "lease"),
    (Compacted, grpc.StatusCode.OUT_OF_RANGE, "compacted"),
    (TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max"),
    (WritesRefused, grpc.StatusCode.RESOURCE_EXHAUSTED, "database space exceeded"),
    (WritesRefused, grpc.StatusCode.DATA_LOSS, "corrupt cluster"),
)
# A member without quorum ends streams at once instead of serving silence.
_REQUIRE_LEADER = ("hasleader", "true")
_STREAM_LOGIN_SECONDS = 5.0


class _RenewalStub:
    """The renewal of leases, a bidirectional stream in etcd's protocol, as a unary call: one request and one answer are
    the same on the wire.

    gRPC serves a stream by one thread for requests and one for answers. When etcd restarted, a renewal was observed to
    block there beyond its deadline, without end, and the lease expired. A unary call waits in gRPC's core.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.LeaseKeepAlive = channel.unary_unary(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=messages.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=messages.LeaseKeepAliveResponse.FromString,
        )


_SERVICES = {
    "auth": "Auth",
    "kv": "KV",
    "lease": "Lease",
    "watch": "Watch",
    "maintenance": "Maintenance",
    "cluster": "Cluster",
}
"""Names of services here, and in etcd's protocol."""


def _stubs(channel: grpc.Channel) -> dict[str, Any]:
    services: dict[str, Any] = {name: Service(channel, its_name) for name, its_name in _SERVICES.items()}
    return services | {"renewal": _RenewalStub(channel)}


class Stream:
    """One bidirectional stream. Iterating it raises the errors of :mod:`elastrain.etcd.errors`."""

    def __init__(
        self,
        call: Any,
        explain: Callable[[grpc.RpcError], EtcdError],
        refused: Callable[[str], EtcdError],
        forget_token: Callable[[], None],
    ) -> None:
        self._call = call
        self._explain = explain
        self._forget_token = forget_token
        self.refused = refused
        """The error for a refusal that arrived as an answer, with etcd's text. The next stream logs in again, since
        some releases of etcd do not distinguish an expired token from a missing permission."""

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def cancel(self) -> None:
        """End the stream; may be called from any thread, and repeatedly."""
        self._call.cancel()

    def give_up(self) -> None:
        """End a stream without answers. The next one logs in again: see :meth:`Wire._forget_token`."""
        self._forget_token()
        self._call.cancel()


class Wire:
    """Connections to the endpoints of one cluster. Thread-safe."""

    def __init__(self, config: EtcdConfig) -> None:
        """Connects lazily. Raises ``ValueError`` with the file's name if a certificate is unreadable."""
        self.config = config
        self._lock = threading.Lock()
        self._current = 0
        self._token = ""
        self.closed = False
        self._retired: list[grpc.Channel] = []
        self._stamp = self._files()
        self._channels, self._stubs = self._connect()

    def _files(self) -> tls.Stamp:
        return tls.stamp(self.config.ca, self.config.cert, self.config.key)

    def _connect(self) -> tuple[list[grpc.Channel], list[dict[str, Any]]]:
        """A channel and its stubs for each endpoint. Raises ``ValueError`` for an invalid certificate file."""
        config, credentials = self.config, None
        if config.ca is not None:
            read = tls.read(config.ca, config.cert, config.key)
            credentials = grpc.ssl_channel_credentials(read.ca, read.key, read.cert)
        channels = [
            grpc.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)
            if credentials
            else grpc.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
            for endpoint in config.endpoints
        ]
        return channels, [_stubs(channel) for channel in channels]

    @property
    def endpoint(self) -> str:
        """The endpoint in use, ``host:port``."""
        return self.config.endpoints[self._current]

    def unary(self, service: str, method: str, request: Any, *, timeout: float, what: str) -> Any:
        """One call of at most ``timeout`` seconds, tried on each endpoint, and again with a new token or replaced
        certificates.

        ``what`` completes "tried to ..." in errors. Raises ``EtcdUnavailable``, ``EtcdDenied`` or ``EtcdError``.
        """

        def attempt(stub: Any, metadata: list[tuple[str, str]], left: float) -> Any:
            return getattr(stub, method)(request, timeout=left, metadata=metadata)

        return self._attempts(service, attempt, timeout, what)

    def renew(self, request: Any, *, timeout: float, what: str) -> Any:
        """The answer to one ``LeaseKeepAliveRequest``. Errors as in :meth:`unary`."""

        def attempt(stub: Any, metadata: list[tuple[str, str]], left: float) -> Any:
            return stub.LeaseKeepAlive(request, timeout=left, metadata=[*metadata, _REQUIRE_LEADER])

        return self._attempts("renewal", attempt, timeout, what)

    def stream(self, service: str, method: str, requests: Iterator[Any], *, what: str) -> Stream:
        """Open a stream on the endpoint in use; the caller reopens it after its end. Iterating it raises the errors."""
        with self._lock:
            index, stubs, token = self._current, self._stubs[self._current], self._token

        def explain(error: grpc.RpcError) -> EtcdError:
            if self._is_stale(str(error.details() or "")):
                return refused(str(error.details()))
            explained = self._explain(error, index, what)
            if isinstance(explained, EtcdUnavailable):
                self._recover(index)
            return explained

        def refused(words: str) -> EtcdError:
            self._forget_token(token)
            endpoint = self.config.endpoints[index]
            if self._is_stale(words):
                return EtcdUnavailable(endpoint, what, "the token has expired")
            if "permission denied" in words:
                return EtcdDenied(endpoint, self.config.username, what, words)
            return EtcdUnavailable(endpoint, what, words)

        try:
            with self._open(what):
                token = token or self._log_in(stubs["auth"], _STREAM_LOGIN_SECONDS)
                call = getattr(stubs[service], method)(requests, metadata=[*_metadata(token), _REQUIRE_LEADER])
        except grpc.RpcError as error:
            raise explain(error) from None
        return Stream(call, explain, refused, lambda: self._forget_token(token))

    def close(self) -> None:
        with self._lock:
            self.closed = True
            channels = [*self._channels, *self._retired]
        for channel in channels:
            channel.close()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _attempts(
        self, service: str, attempt: Callable[[Any, list[tuple[str, str]], float], Any], timeout: float, what: str
    ) -> Any:
        deadline = time.monotonic() + timeout
        failure: EtcdError | None = None
        for _ in range(len(self.config.endpoints) + 2):  # a new token and new certificates cost one attempt each
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with self._lock:
                index, stubs, token = self._current, self._stubs[self._current], self._token
            doing = what
            try:
                with self._open(what):
                    if not token:
                        doing = f"log in ({what})"
                        token = self._log_in(stubs["auth"], left)
                        doing = what
                    return attempt(stubs[service], _metadata(token), max(deadline - time.monotonic(), 0.001))
            except grpc.RpcError as error:
                failure = self._explain(error, index, doing)
                stale = self._is_stale(str(error.details() or ""))
                if stale or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._forget_token(token)
                if stale:
                    failure = EtcdUnavailable(self.config.endpoints[index], doing, "the token has expired")
                elif not (isinstance(failure, EtcdUnavailable) and self._recover(index)):
                    raise failure from None
        raise failure or EtcdUnavailable(self.endpoint, what, f"no answer within {timeout:g} s")

    def _log_in(self, auth: Any, timeout: float) -> str:
        """A new token; empty without a user, or while etcd's authentication is off."""
        config = self.config
        if config.password_file is None:
            return ""
        request = messages.AuthenticateRequest(name=config.username, password=self._password(config.password_file))
        try:
            token = str(auth.Authenticate(request, timeout=timeout).token)
        except grpc.RpcError as error:
            if "authentication is not enabled" in str(error.details()):
                return ""
            raise
        with self._lock:
            self._token = token
        return token

    def _password(self, file: Path) -> str:
        """The password, read for every login, so that a rotated one takes effect."""
        try:
            return file.read_text().rstrip("\n")
        except (OSError, ValueError) as error:
            why = f"the password file {str(file)!r} cannot be read: {error}"
            raise EtcdDenied(self.endpoint, self.config.username, "log in", why) from None

    @contextmanager
    def _open(self, what: str) -> Iterator[None]:
        """gRPC raises ``ValueError`` for a closed channel."""
        try:
            yield
        except ValueError as error:
            if self.closed:
                raise EtcdUnavailable(self.endpoint, what, "this client is closed") from error
            raise

    def _forget_token(self, token: str) -> None:
        """Log in before the next call. Needed also after calls without an answer: a token ends with the index at which
        etcd issued it, and an etcd that has lost its data keeps a call waiting until it has that many entries
        (``isValidSimpleToken`` in etcd's server/auth/simple_token.go)."""
        with self._lock:
            if self._token == token:
                self._token = ""

    def _is_stale(self, words: str) -> bool:
        """Whether a new login cures etcd's error: an expired simple token, a token from before a restart of etcd or a
        change of its users, or no token although authentication is now on."""
        return (
            "invalid auth token" in words
            or "revision of auth store is old" in words
            or ("user name is empty" in words and self.config.password_file is not None)
        )

    def _recover(self, failed: int) -> bool:
        """After an endpoint was unavailable: prepare the next attempt, and return whether there is one."""
        if self._renew():
            return True
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._channels)
        return len(self._channels) > 1

    def _renew(self) -> bool:
        """Reconnect if certificate files were replaced since the last check; returns whether they were.

        Called only after a failed connection: a working connection needs no new certificate.
        """
        with self._lock:
            files = self._files()
            if self.closed or files == self._stamp:
                return False
            self._stamp = files
            try:
                channels, stubs = self._connect()
            except ValueError as error:
                log.warning("replaced certificates are invalid; the former ones stay in use: %s", error)
                return False
            # Calls on the old channels finish there; the next replacement or close() closes these channels.
            retired, self._retired = self._retired, self._channels
            self._channels, self._stubs = channels, stubs
        for channel in retired:
            channel.close()
        log.info("certificates for etcd were replaced; reconnecting")
        return True

    def _explain(self, error: grpc.RpcError, index: int, what: str) -> EtcdError:
        code, detail = error.code(), str(error.details() or "")
        endpoint = self.config.endpoints[index]
        denied = code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or (
            code is grpc.StatusCode.INVALID_ARGUMENT and ("authentication failed" in detail or "user name" in detail)
        )
        if denied:
            if "authentication failed" in detail and self.config.password_file:
                detail += f" (the password is from {self.config.password_file})"
            return EtcdDenied(endpoint, self.config.username, what, detail)
        for kind, its_code, word in _TOLD_BY_WORDS:
            if code is its_code and word in detail:
                return kind(what, detail)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EtcdUnavailable(endpoint, what, "no answer in time")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
            hint = tls.hint(detail, self.config.ca)
            return EtcdUnavailable(endpoint, what, f"{hint} ({detail})" if hint else detail)
        return EtcdError(what, f"{detail} ({code.name})")


def range_end(prefix: str) -> bytes:
    """The end of the range of keys with ``prefix``: the least key that is greater than all of them."""
    key = prefix.encode()  # has no byte 0xff, which could not be counted up
    return key[:-1] + bytes([key[-1] + 1]) if key else b"\0"  # etcd's "to the last key"


def _metadata(token: str) -> list[tuple[str, str]]:
    return [("token", token)] if token else []
