"""Whether etcd is reachable, from the reports of lease and watch, and the consequences of an outage.

A state machine without clock or I/O: its owner feeds it and reads its attributes.
"""

from __future__ import annotations

from elastrain.etcd import EtcdError


class Contact:
    """One member's contact with etcd. ``now``: seconds of any monotonic clock."""

    def __init__(self, lease_ttl: float) -> None:
        self.watching = False
        """The watch is connected: its state is current."""
        self.error: EtcdError | None = None
        """Why etcd is unreachable; None: it is reachable, or the reason is not known yet."""
        self.grace_until = 0.0
        """Until then, members with expired leases may return, since an outage prevents renewals."""
        self.reachable = True
        """Whether both watch and lease work."""
        self._lease_ttl = lease_ttl
        self._leased = True

    @property
    def answers(self) -> bool:
        """Whether etcd can be read and written now."""
        return self.watching and self.reachable

    def watch_reported(self, error: EtcdError | None, connected: bool, now: float) -> bool:
        """Note that the watch is ``connected``, or failed with ``error``. Returns whether :attr:`reachable` changed."""
        self.watching = connected
        return self._update(error, now)

    def lease_reported(self, error: EtcdError | None, now: float) -> bool:
        """Note that a renewal of the lease failed with ``error``, or succeeded (None). Returns whether
        :attr:`reachable` changed."""
        self._leased = error is None
        return self._update(error, now)

    def outage(self, now: float) -> bool:
        """Whether leases may have expired although their members live."""
        return not self.reachable or now < self.grace_until

    def _update(self, error: EtcdError | None, now: float) -> bool:
        before, self.reachable = self.reachable, self.watching and self._leased
        self.error = None if self.reachable else error or self.error
        if self.reachable and not before:
            self.grace_until = now + self._lease_ttl
        return self.reachable != before
