"""The job's ``progress`` on its way to etcd: the newest that rank 0's agent was given, now and then."""

from __future__ import annotations

import threading

from elastrain.api.keys import JobKeys
from elastrain.api.records import Closed, Progress
from elastrain.etcd import EtcdClient, EtcdError, Transaction

INTERVAL = 1.0
"""Least seconds between two writes."""
_WRITE_SECONDS = 2.0
"""Bound of one write."""


class ProgressPost:
    """Holds what is to be written, and writes it. Thread-safe; times are the caller's monotonic seconds."""

    def __init__(self, client: EtcdClient, keys: JobKeys) -> None:
        self._client, self._keys = client, keys
        self._lock = threading.Lock()
        self._waiting: tuple[str, Progress] | None = None
        self._not_before = float("-inf")

    @property
    def due(self) -> float | None:
        """When what waits may be written; None if nothing waits."""
        return self._not_before if self._waiting is not None else None

    def put(self, member: str, progress: Progress) -> None:
        """To be written by ``member``, in place of what still waits."""
        with self._lock:
            self._waiting = member, progress

    def write_if_due(self, now: float) -> None:
        """Raises :class:`EtcdError`; what could not be written still waits then."""
        if now >= self._not_before and self._waiting is not None:
            self._not_before = now + INTERVAL
            self.write_now(_WRITE_SECONDS)

    def write_now(self, timeout: float) -> None:
        """Write what waits within ``timeout`` seconds. Raises as :meth:`write_if_due` does.

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
