"""Access to the API server: by the service account, else by the kubeconfig; and until when it may be written to."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import kopf
import yaml

from elastrain_operator.kube.answers import NotLeading

log = logging.getLogger(__name__)


def login(settings: kopf.OperatorSettings | None = None) -> kopf.ConnectionInfo:
    """The current address and credentials. May block: a kubeconfig can name a program that fetches a token.

    The official client is used only for a kubeconfig that needs it (exec plugins, identity providers, relative paths).

    Raises ``kopf.LoginError`` if there is neither a service account nor a usable kubeconfig.
    """
    settings = settings or kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or _plain_kubeconfig(settings)
    found = found or kopf.login_via_client(logger=log, settings=settings)
    if found is None:
        raise kopf.LoginError("no service account, and the kubeconfig requires the package 'kubernetes'")
    return found


def _plain_kubeconfig(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo | None:
    """Literal access data of a kubeconfig; None if there is none, or if reading it needs the official client."""
    try:
        found = kopf.login_with_kubeconfig(settings=settings)
    except (OSError, KeyError, ValueError, AttributeError, yaml.YAMLError, kopf.LoginError):
        return None  # the official client reports the error
    if found is None or found.proxy_url:
        return None
    who = found.token or found.username or found.certificate_path or found.certificate_data
    files = (found.ca_path, found.certificate_path, found.private_key_path)
    return found if who and all(f is None or Path(f).is_absolute() for f in files) else None


class Access:
    """An address with credentials that are renewed when the API server no longer accepts them."""

    def __init__(self, info: kopf.ConnectionInfo, log_in: Callable[[], kopf.ConnectionInfo] = login) -> None:
        self.server: str = info.server.rstrip("/")
        self.ssl: ssl.SSLContext = info.as_ssl_context()
        self.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        self.trust_env: bool = info.trust_env
        self.headers: dict[str, str] = info.as_http_headers()
        self._log_in = log_in
        self._renewing = asyncio.Lock()

    @classmethod
    async def find(cls) -> Access:
        """Raises ``kopf.LoginError``: see :func:`login`."""
        return cls(await asyncio.to_thread(login))

    async def renew(self, refused: dict[str, str]) -> None:
        """The headers ``refused`` are not accepted: log in again, unless another call has done so. (A service
        account's token is replaced in its file long before it expires.)"""
        async with self._renewing:
            if self.headers is refused:
                self.headers = (await asyncio.to_thread(self._log_in)).as_http_headers()


class Tenure:
    """The end of this process's right to write, on its own monotonic clock. Threads read it, the elector writes it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")

    def extend(self, until: float) -> None:
        """Permit writes until ``until``."""
        self._until = until

    def end(self) -> None:
        """Permit no further write."""
        self._until = float("-inf")

    def seconds_left(self, what: str) -> float:
        """Seconds that a write sent now may take: more than 0. To be called immediately before sending.

        Raises :class:`NotLeading`; ``what`` completes "cannot ..." in its message.
        """
        left = self._until - self._clock()
        if left <= 0:
            raise NotLeading(what)
        return left
