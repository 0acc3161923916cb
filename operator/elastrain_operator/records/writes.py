"""Whether etcd accepts writes. An alarm refuses those of all clients, while lists and watches work as ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from elastrain.etcd import EtcdClient, EtcdError, WritesRefused
from elastrain_operator.metrics.process import ETCD_ALARM

INTERVAL = 15.0
"""Seconds between two trials."""
TTL = 5
"""Seconds of the lease of a trial, if its end is refused."""

log = structlog.get_logger(__name__)


async def watch(
    etcd: EtcdClient, on_result: Callable[[WritesRefused | None], None], interval: float = INTERVAL
) -> None:
    """Until cancelled: report the refusal, or that there is none. Without an answer of etcd it reports nothing."""
    while True:
        try:
            refusal = await asyncio.to_thread(trial, etcd)
        except EtcdError as error:
            log.debug("etcd was not tried", error=str(error))
        else:
            for alarm in ("NOSPACE", "CORRUPT"):
                ETCD_ALARM.labels(alarm).set(refusal is not None and refusal.alarm == alarm)
            on_result(refusal)
        await asyncio.sleep(interval)


def trial(etcd: EtcdClient) -> WritesRefused | None:
    """Why etcd refuses a write; None: it accepts it.

    A lease writes no key and needs no right. Raises ``EtcdError`` for any other failure.
    """
    try:
        lease = etcd.lease_grant(TTL)
        etcd.lease_revoke(lease)
    except WritesRefused as refusal:
        return refusal
    return None
