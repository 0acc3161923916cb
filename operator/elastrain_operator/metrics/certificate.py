"""When etcd's certificates expire, as a metric: after that, no client of etcd can connect."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import structlog

from elastrain.etcd import EtcdConfig
from elastrain_operator.metrics.process import ETCD_CERTIFICATE_EXPIRY

INTERVAL = 600.0
"""Seconds between two looks."""
CONNECT_SECONDS = 10.0

log = structlog.get_logger(__name__)


async def watch(etcd: EtcdConfig, interval: float = INTERVAL) -> None:
    """Until cancelled: keep the metric current. While etcd cannot be reached, it keeps its value."""
    assert etcd.ca is not None, "without a CA there is no TLS"
    while True:
        try:
            ETCD_CERTIFICATE_EXPIRY.set(await expiry(etcd.endpoints, etcd.ca))
        except (OSError, ValueError) as error:  # of TLS, too
            log.warning("expiry of etcd's certificate is unknown", error=str(error), retry_s=interval)
        await asyncio.sleep(interval)


async def expiry(endpoints: tuple[str, ...], ca: Path) -> float:
    """Unix time at which the first certificate of etcd's ``endpoints`` expires, or the last CA in the file ``ca``,
    if that is earlier.

    Raises ``OSError`` (which includes TLS) if an endpoint does not answer or its certificate is not valid, and
    ``ValueError`` if the file holds no CA.
    """
    context = ssl.create_default_context(cafile=str(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trusted = [ssl.cert_time_to_seconds(str(c["notAfter"])) for c in context.get_ca_certs() if "notAfter" in c]
    if not trusted:
        raise ValueError(f"{ca} holds no CA certificate")
    shown = await asyncio.gather(*(_shown(endpoint, context) for endpoint in endpoints))
    return float(min(*shown, max(trusted)))


async def _shown(endpoint: str, context: ssl.SSLContext) -> float:
    host, _, port = endpoint.rpartition(":")
    async with asyncio.timeout(CONNECT_SECONDS):
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        return ssl.cert_time_to_seconds(str(writer.get_extra_info("peercert")["notAfter"]))
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 1.0)
