"""What happens to the job, and when: a storm that follows from its seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from elastrain_cli.local.status import LocalStatus, WorkerStatus


class Kind(StrEnum):
    JOIN = "join"
    LEAVE = "leave"
    KILL_RANK = "kill -9 of a rank"
    KILL_WORKER = "kill -9 of a worker"


WEIGHTS: Mapping[Kind, int] = {Kind.JOIN: 4, Kind.LEAVE: 3, Kind.KILL_RANK: 3, Kind.KILL_WORKER: 3}
FAIR = 10  # the first and the last tenth of the steps have no events
SPACING = 1.5
"""Time between two events, in the mean, beside that in which a worker starts on a machine at rest."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    due: int
    """Committed steps from which on it happens."""
    choice: float
    """Which of the workers it hits, and how far into a step: from 0 to 1."""


def forecast(seed: int, count: int, steps: int, *, smallest: int, largest: int, first: int) -> list[Event]:
    """``count`` events of a job of ``steps`` steps that begins with ``first`` workers, none of them in the first
    and the last tenth of it, and never a wanted size below ``smallest`` or above ``largest``."""
    rng = random.Random(seed)
    wanted = first
    events = []
    for due in sorted(rng.randrange(steps // FAIR, steps - steps // FAIR) for _ in range(count)):
        possible = [k for k in Kind if (wanted < largest if k is Kind.JOIN else wanted > smallest)]
        kind = rng.choices(possible, [WEIGHTS[k] for k in possible])[0]
        wanted += {Kind.JOIN: 1, Kind.LEAVE: -1}.get(kind, 0)
        events.append(Event(kind, due, rng.random()))
    return events


def pace(start: float, count: int, steps: int) -> float:
    """Seconds that a step must take for ``count`` events in ``steps`` steps to meet workers that train, where one takes
    ``start`` seconds to start. If events came quicker, most would wait for a second worker, and find just that."""
    return SPACING * start * count / (steps - 2 * (steps // FAIR))


class Holders:
    """Who holds the job's state in memory, as far as can be told from outside."""

    def __init__(self) -> None:
        self._trained: set[str] = set()
        self._killed: set[str] = set()

    def of(self, status: LocalStatus) -> list[WorkerStatus]:
        """Those workers, oldest first. To be asked at every change: a member counts from when it was seen in a
        generation that it had adopted, and stays one while later generations are only proposed."""
        generation = status.generation
        inside = {m.id for m in generation.members} if generation else set()
        self._trained |= {
            w.member for w in status.running if generation and w.member in inside and w.generation == generation.number
        }
        alive = self._trained - self._killed
        return [w for w in status.running if w.member in alive and not w.leaving]

    def killed(self, member: str) -> None:
        """The record of ``member`` may outlive it for a moment."""
        self._killed.add(member)


def may_happen(event: Event, status: LocalStatus, holders: Holders) -> bool:
    """Whether it is time for ``event``, and enough workers hold the job's state to live through it."""
    enough = len(holders.of(status)) > status.min
    if status.progress is None or status.progress.step < event.due:
        return False
    if sum(not w.leaving for w in status.running) > status.desired:
        return False  # the last leave has not reached its worker yet: another one must not be taken for it
    return event.kind is Kind.JOIN or enough
