"""Whether etcd can be reached, by what lease and watch report, and what follows from an outage.

A state machine without clock and I/O: its owner feeds it and reads its attributes.
"""

from __future__ import annotations

from elastrain.api.records import Generation
from elastrain.etcd import EtcdError


class Contact:
    """One member's contact with etcd. ``now``: of any clock that does not go backwards, in seconds."""

    def __init__(self, lease_ttl: float) -> None:
        self.watching = False
        """The watch is connected: what etcd shows is the newest."""
        self.error: EtcdError | None = None
        """Why etcd cannot be reached; None: it can, or the reason is not known yet."""
        self.grace_until = 0.0
        """Until then members whose leases ran out may return: an outage can keep a lease from being renewed."""
        self.fenced: float | None = None
        """Seconds without a confirmed lease at which this member, alone in its generation, was fenced; None: it is not.
        Another generation may have been formed: no step may be committed until etcd answers again."""
        self._lease_ttl = lease_ttl
        self._leased = True
        self._reachable = True

    @property
    def reachable(self) -> bool:
        """Both watch and lease work."""
        return self._reachable

    def watch_reported(self, error: EtcdError | None, connected: bool, now: float) -> bool:
        """The watch is ``connected``, or ``error`` keeps it from being so. Returns whether
        :attr:`reachable` changed."""
        self.watching = connected
        return self._update(error, now)

    def lease_reported(self, error: EtcdError | None, now: float) -> bool:
        """``error`` keeps the lease from being renewed; None: nothing does. Returns whether
        :attr:`reachable` changed."""
        self._leased = error is None
        return self._update(error, now)

    def outage(self, now: float) -> bool:
        """Whether leases may have run out although their members live."""
        return not self._reachable or now < self.grace_until

    def check_fence(self, seconds: float, generation: Generation | None) -> bool:
        """Fence the member if its lease was not confirmed for ``seconds`` while it is alone in ``generation``. Returns
        whether that happened now."""
        alone = generation is not None and generation.size == 1
        if self._reachable or self.fenced is not None or seconds < self._lease_ttl or not alone:
            return False
        self.fenced = seconds
        return True

    def fenced_in(self, seconds: float) -> float | None:
        """Seconds until :meth:`check_fence` is due; None: it is not."""
        return None if self._reachable or self.fenced is not None else self._lease_ttl - seconds

    def _update(self, error: EtcdError | None, now: float) -> bool:
        reachable = self.watching and self._leased
        self.error = None if reachable else error or self.error
        if reachable == self._reachable:
            return False
        self._reachable = reachable
        if reachable:
            self.fenced = None
            self.grace_until = now + self._lease_ttl
        return True
