"""The start of a lease's time, with an etcd in memory: no server, and only the test's clock advances."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from elastrain.etcd import lease as module
from elastrain.etcd.lease import Lease, LeaseCallbacks

TTL = 6


class Etcd:
    """Answers every call; a renewal takes ``keepalive_seconds``."""

    timeout = 5.0

    def __init__(self) -> None:
        self.now = 100.0
        self.keepalive_seconds = 0.0

    def lease_grant(self, ttl: int) -> int:
        return 7

    def lease_keepalive(self, lease: int, timeout: float) -> None:
        self.now += self.keepalive_seconds

    def put(self, key: str, value: bytes, *, lease: int, timeout: float) -> None:
        pass


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Etcd:
    etcd = Etcd()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: etcd.now))
    return etcd


@pytest.fixture
def lease(etcd: Etcd) -> Iterator[Lease]:
    held = Lease(etcd, TTL, LeaseCallbacks())  # type: ignore[arg-type]
    held.start()
    yield held
    held.close(revoke=False)


def test_a_renewal_counts_from_its_sending_if_its_answer_is_slow(etcd, lease):
    """etcd may have renewed the lease at that time, and counts from it."""
    etcd.keepalive_seconds = 1.5
    etcd.now += TTL / 3
    lease.set("key", b"value")  # wakes the thread, which finds the renewal due
    assert lease.flush(5.0)
    assert etcd.now - lease.confirmed == 1.5
