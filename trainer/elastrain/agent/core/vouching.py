"""Until when an agent's ranks may commit steps, and which generations may commit none any more. Pure.

A generation is replaced by members that know nothing of it only if etcd has dropped the leases of all its members. So
the agent vouches for as long as its own lease lives for certain: one TTL from the last confirmed renewal. While etcd is
away no lease is confirmed, and no member can form a generation either; a generation of several members then goes on, as
long as the agent itself looks without a gap: an agent that was stopped in the meantime knows nothing of what has
happened. If it finds its lease lost when it looks again, the generations that it knew are over.

A generation of this member alone has no peers whose sums prove that no other one was formed. It is over when the agent
cannot vouch for the lease any more. In-process ranks read that in the page; other programs, whose steps the agent does
not see, are ended by the message that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.api.pages.vouch import Vouch


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The lease at one moment. Read ``confirmed`` before ``id``: a lease that is replaced gets its id first."""

    confirmed: float
    """When the last confirmed renewal was sent, monotonic seconds."""
    id: int
    """0: lost, and not replaced yet."""


class Vouching:
    """One agent's vouch."""

    def __init__(self, lease_ttl: float) -> None:
        self.vouch = Vouch()
        """As of the last look."""
        self._ttl = lease_ttl
        self._lease = 0
        """The lease under which it vouches."""

    def look(self, lease: LeaseSeen, newest: int, *, away: bool, now: float) -> bool | None:
        """Vouch anew. ``newest``: number of the newest generation known. ``away``: etcd does not answer.

        Returns whether generations became over by that: True for those of this member alone, False for all of them;
        None: for none.
        """
        old, lost = self.vouch, self._lease not in (0, lease.id)
        stopped = now >= max(old.leased, old.away)
        every, alone = lost and stopped, (lost or away) and now >= old.leased
        if lease.id or every:
            self._lease = lease.id
        self.vouch = Vouch(
            leased=lease.confirmed + self._ttl if lease.id else old.leased,
            away=now + self._ttl if away and not stopped else old.away,
            fenced=newest if every else old.fenced,
            fenced_alone=newest if alone else old.fenced_alone,
        )
        if self.vouch.fenced != old.fenced:
            return False
        return True if self.vouch.fenced_alone != old.fenced_alone else None
