"""Whether etcd can be reached, by what lease and watch say of it, and what follows from an outage.

A state machine without clock and I/O: its owner feeds it, and tells the events that it returns.
"""

from __future__ import annotations

from elastrain.api.records import Generation
from elastrain.etcd import EtcdError
from elastrain.rendezvous.events import EtcdBack, EtcdLost, Fenced


class Contact:
    """One member's contact with etcd. ``now``: of any clock that does not go backwards, in seconds."""

    def __init__(self, lease_ttl: float) -> None:
        self.watching = False
        """Whether what etcd shows is the newest."""
        self.reachable = True
        self.grace_until = 0.0
        """Until then members whose leases ran out may come back: perhaps they only could not renew them."""
        self._lease_ttl = lease_ttl
        self._leased = True
        self._told_fenced = False

    def watch_says(self, error: EtcdError | None, connected: bool, now: float) -> EtcdBack | EtcdLost | None:
        """The watch is ``connected``, or ``error`` keeps it from being so."""
        self.watching = connected
        return self._changed(error, now)

    def lease_says(self, error: EtcdError | None, now: float) -> EtcdBack | EtcdLost | None:
        """``error`` keeps the lease from being renewed; None: nothing does."""
        self._leased = error is None
        return self._changed(error, now)

    def outage(self, now: float) -> bool:
        """Whether leases may have run out without anybody's fault."""
        return not self.reachable or now < self.grace_until

    def fenced(self, seconds: float, generation: Generation | None) -> Fenced | None:
        """What to say, once, when the lease was not confirmed for ``seconds`` while the member, in ``generation``, is
        alone."""
        if self.reachable or self._told_fenced or seconds < self._lease_ttl:
            return None
        if generation is None or generation.size != 1:
            return None
        self._told_fenced = True
        return Fenced(seconds)

    def fenced_in(self, seconds: float) -> float | None:
        """Seconds until :meth:`fenced` must be asked; None: it need not."""
        return None if self.reachable or self._told_fenced else self._lease_ttl - seconds

    def _changed(self, error: EtcdError | None, now: float) -> EtcdBack | EtcdLost | None:
        reachable = self.watching and self._leased
        if reachable == self.reachable:
            return None
        self.reachable = reachable
        if reachable:
            self._told_fenced = False
            self.grace_until = now + self._lease_ttl
            return EtcdBack()
        return EtcdLost(error) if error is not None else None
