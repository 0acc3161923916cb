"""Leader election among the operator's replicas: the decision of one replica about one Lease. Pure.

The method is that of client-go's ``tools/leaderelection``: the times inside a Lease are never compared with a clock.
A replica notes on its own monotonic clock when it *saw* the Lease change, and takes over if the Lease has not changed
for the time within which its holder promised to renew it. The holder counts from before it *sent* its last renewal, and
stops ``hold`` seconds later. So clocks may differ by any offset, and their rates by up to ``duration / hold`` (10 : 8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Terms:
    """The timing of the election, in seconds."""

    duration: float = 10.0
    """Another replica takes over after this time without a renewal."""

    stuck: float = 45.0
    """A leader steps down if its main loop has not run for this time: it serves no job. A shorter pause is load, which
    another replica would meet as well. Kubernetes' liveness probe ends the process after 60 s."""

    @property
    def hold(self) -> float:
        """The holder stops writing this long after it sent its last renewal."""
        return 0.8 * self.duration

    @property
    def renew(self) -> float:
        """Interval of renewals."""
        return 0.2 * self.duration

    @property
    def attempt(self) -> float:
        """Limit of one request for the Lease; a second one still fits into ``hold``. An API server under load answers
        late: one long attempt gets an answer where several short ones get none."""
        return 0.4 * self.duration

    @property
    def poll(self) -> float:
        """Interval at which a stand-by reads the Lease, and the delay before a refused request is repeated."""
        return min(0.1 * self.duration, 1.0)


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as the API server showed it."""

    version: str
    """``metadata.resourceVersion``: differs after every write."""
    holder: str
    """Identity of the leader; empty: it has released the Lease."""
    duration: float
    """Seconds within which the holder promised to renew it."""
    transitions: int = 0
    """How often the holder has changed."""


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """One replica's observations. All times are of its own monotonic clock."""

    me: str
    """Identity of this process. No other process ever has the same."""
    record: Record | None = None
    """The Lease as last seen; None: there is none, or it has not been read yet."""
    seen: float | None = None
    """When the newest change was first seen; None: the Lease has not been read yet."""
    promised: float = 0.0
    """Seconds from ``seen`` for which a holder may still believe that it leads."""
    renewed: float | None = None
    """When this replica's newest successful write of the Lease was sent; None: it does not lead."""


class Step(StrEnum):
    """What a replica does next."""

    WRITE = "acquire or renew the Lease, if it is unchanged since it was seen"
    WAIT = "wait; a stand-by then reads the Lease again"
    STEP_DOWN = "lead no longer, whatever the Lease contains by now"


class Action(NamedTuple):
    """The next step of a replica."""

    step: Step
    seconds: float = 0.0
    """To wait."""
    why: str = ""
    """It steps down."""


def saw(observation: LeaseObservation, record: Record | None, now: float) -> LeaseObservation:
    """The observation after reading the Lease; ``now``: when the response had arrived."""
    if observation.seen is not None and record == observation.record:
        return observation
    if record is None:
        # The Lease was deleted, perhaps unnoticed by its holder. Before the first read no holder is known.
        promised = observation.record.duration if observation.record and observation.record.holder else 0.0
    else:
        promised = record.duration if record.holder else 0.0
    return replace(observation, record=record, seen=now, promised=promised)


def wrote(observation: LeaseObservation, record: Record, sent: float, now: float) -> LeaseObservation:
    """The observation after the API server accepted this replica's write; ``sent``: before the request left."""
    return replace(saw(observation, record, now), renewed=sent)


def leads_until(observation: LeaseObservation, terms: Terms) -> float | None:
    """When this replica must stop writing; None: it does not lead."""
    return None if observation.renewed is None else observation.renewed + terms.hold


def attempt_seconds(observation: LeaseObservation, now: float, terms: Terms) -> float:
    """Limit of a request that is sent now. A leader's attempt ends with its tenure, so that it steps down in time."""
    until = leads_until(observation, terms)
    return terms.attempt if until is None else max(min(terms.attempt, until - now), 0.05)


def retry_after(terms: Terms, *, answered: bool) -> float:
    """Seconds between a failed request and the next one: none if it had no answer, which has taken its time."""
    return terms.poll if answered else 0.0


def decide(observation: LeaseObservation, now: float, terms: Terms, silence: float = 0.0) -> Action:
    """The replica's next action. A replica that has stepped down never leads again under the same identity.

    ``silence``: seconds since its main loop last ran.
    """
    if observation.renewed is not None and silence >= terms.stuck:
        return Action(Step.STEP_DOWN, why=f"the main loop has been stuck for {silence:.0f} s")
    return (
        _as_leader(observation, observation.renewed, now, terms)
        if observation.renewed is not None
        else _as_standby(observation, now, terms)
    )


def _as_leader(observation: LeaseObservation, renewed: float, now: float, terms: Terms) -> Action:
    if now >= renewed + terms.hold:
        return Action(Step.STEP_DOWN, why=f"the lease could not be renewed for {now - renewed:.1f} s")
    if observation.record is None:
        return Action(Step.STEP_DOWN, why="the lease was deleted")
    if observation.record.holder != observation.me:
        holder = observation.record.holder
        why = f"the lease was taken over by {holder}" if holder else "the lease was released"
        return Action(Step.STEP_DOWN, why=why)
    due = renewed + terms.renew - now
    return Action(Step.WAIT, due) if due > 0 else Action(Step.WRITE)


def _as_standby(observation: LeaseObservation, now: float, terms: Terms) -> Action:
    if observation.seen is None:
        return Action(Step.WAIT, 0.0)
    if observation.record is not None and observation.record.holder == observation.me:
        return Action(Step.WRITE)  # an earlier attempt succeeded, but its response was lost
    left = observation.seen + observation.promised - now
    return Action(Step.WRITE) if left <= 0 else Action(Step.WAIT, min(left, terms.poll))
