"""Who leads among the operator's replicas: the decision of one replica about one Lease. Pure.

The method is that of client-go's ``tools/leaderelection``: the times inside a Lease are never compared with a clock.
A replica notes on its own monotonic clock when it *saw* the Lease change, and takes over when it has not changed for
as long as its holder promised to renew it within. The holder counts from before it *sent* its last renewal, and stops
``hold`` seconds later. So clocks may differ by anything; their rates by up to ``duration / hold`` (10 : 7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds."""

    duration: float = 10.0
    """Others take over when they have seen no renewal for so long."""

    @property
    def hold(self) -> float:
        """The holder writes for no longer than this after it sent its last renewal."""
        return 0.7 * self.duration

    @property
    def renew(self) -> float:
        """Between two renewals."""
        return 0.2 * self.duration

    @property
    def attempt(self) -> float:
        """One request about the Lease may take; a second renewal still fits into ``hold``."""
        return 0.25 * self.duration

    @property
    def poll(self) -> float:
        """Between two looks of a replica that stands by, and before a failed request is repeated."""
        return min(0.1 * self.duration, 1.0)


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as the API server showed it."""

    version: str
    """``metadata.resourceVersion``: differs after every write."""
    holder: str
    """Identity of the replica that leads; empty: it was released."""
    duration: float
    """Seconds within which the holder promised to renew it."""
    transitions: int = 0
    """How often the holder has changed."""


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """What one replica knows. All times are of its own monotonic clock."""

    me: str
    """Identity of this process. No other process, ever, has the same."""
    record: Record | None = None
    """The Lease as last seen; None: there is none, or it was not read yet."""
    seen: float | None = None
    """When the newest change was first seen; None: it was not read yet."""
    promised: float = 0.0
    """Seconds from ``seen`` for which a holder may still believe that it leads."""
    renewed: float | None = None
    """When the newest successful write of the Lease by us was sent; None: we do not lead."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Write the Lease in our name, on the condition that it is as seen."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Write it again, on the same condition."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for so many seconds; a replica that does not lead then looks again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StepDown:
    """We lead no more, whatever the Lease says by now."""

    why: str


Action = Acquire | Renew | Wait | StepDown


def saw(observation: LeaseObservation, record: Record | None, now: float) -> LeaseObservation:
    """The API server has shown the Lease; ``now`` is when its answer had arrived."""
    if observation.seen is not None and record == observation.record:
        return observation
    if record is None:
        # The Lease was deleted, perhaps unnoticed by its holder. Before the first read there is no holder to wait for.
        promised = observation.record.duration if observation.record and observation.record.holder else 0.0
    else:
        promised = record.duration if record.holder else 0.0
    return replace(observation, record=record, seen=now, promised=promised)


def wrote(observation: LeaseObservation, record: Record, sent: float, now: float) -> LeaseObservation:
    """The API server has accepted our write of the Lease; ``sent`` is from before the request left."""
    return replace(saw(observation, record, now), renewed=sent)


def leads_until(observation: LeaseObservation, terms: Terms) -> float | None:
    """Until when this replica may write; None: it does not lead."""
    return None if observation.renewed is None else observation.renewed + terms.hold


def decide(observation: LeaseObservation, now: float, terms: Terms) -> Action:
    """The replica's next action. A replica that has stepped down never leads again under the same identity."""
    return (
        _as_leader(observation, observation.renewed, now, terms)
        if observation.renewed is not None
        else _as_standby(observation, now, terms)
    )


def _as_leader(observation: LeaseObservation, renewed: float, now: float, terms: Terms) -> Action:
    if now >= renewed + terms.hold:
        return StepDown(f"the lease could not be renewed for {now - renewed:.1f} s")
    if observation.record is None:
        return StepDown("the lease was deleted")
    if observation.record.holder != observation.me:
        return StepDown(f"the lease was taken over by {observation.record.holder or 'nobody'}")
    due = renewed + terms.renew - now
    return Wait(due) if due > 0 else Renew()


def _as_standby(observation: LeaseObservation, now: float, terms: Terms) -> Action:
    if observation.seen is None:
        return Wait(0.0)
    if observation.record is not None and observation.record.holder == observation.me:
        return Acquire()  # an earlier attempt succeeded, and its answer was lost
    left = observation.seen + observation.promised - now
    return Acquire() if left <= 0 else Wait(min(left, terms.poll))
