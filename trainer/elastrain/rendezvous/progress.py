"""Writes the job's ``progress`` to etcd: the newest report of rank 0, at intervals."""

from __future__ import annotations

import threading

from elastrain.api.keys import JobKeys
from elastrain.api.records import Closed, Progress
from elastrain.etcd import EtcdClient, EtcdError, Transaction

INTERVAL = 1.0
"""Least seconds between two writes."""
_WRITE_SECONDS = 2.0
"""Seconds for one write."""


class ProgressPost:
    """Holds the next report and writes it. Thread-safe; times are the caller's monotonic seconds."""

    def __init__(self, client: EtcdClient, keys: JobKeys) -> None:
        self._client, self._keys = client, keys
        self._lock = threading.Lock()
        self._waiting: tuple[str, Progress] | None = None
        self._not_before = float("-inf")

    @property
    def due(self) -> float | None:
        """When the pending report may be written; None if none is pending."""
        return self._not_before if self._waiting is not None else None

    def put(self, member: str, progress: Progress) -> None:
        """Replace the pending report, of ``member``."""
        with self._lock:
            self._waiting = member, progress

    def write_if_due(self, now: float) -> None:
        """Raises :class:`EtcdError`; the report then stays pending."""
        if now >= self._not_before and self._waiting is not None:
            self._not_before = now + INTERVAL
            self.write_now(_WRITE_SECONDS)

    def close_job(self, closed: Closed, timeout: float) -> None:
        """Write the end of the job within ``timeout`` seconds. Raises :class:`EtcdError`."""
        self._client.commit(Transaction((), ((self._keys.closed, closed.encode()),)), "end the job", timeout=timeout)

    def write_now(self, timeout: float) -> None:
        """Write the pending report within ``timeout`` seconds. Raises as :meth:`write_if_due` does.

        All members watch ``closed``, which reports the end; only the leader watches the steps until then.
        """
        with self._lock:
            taken, self._waiting = self._waiting, None
        if taken is None:
            return
        member, progress = taken
        puts = [(self._keys.progress, progress.encode())]
        if progress.finished:
            puts.append((self._keys.closed, Closed(member=member, reason="Finished").encode()))
        try:
            self._client.commit(Transaction((), tuple(puts)), "write progress", timeout=timeout)
        except EtcdError:
            with self._lock:
                self._waiting = self._waiting or taken
            raise
