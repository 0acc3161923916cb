"""The figures as types: what ``--json`` writes and ``--render`` reads. Times are seconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Spread(Model):
    """Of one figure over the runs."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Of the values that there are; None if there are none."""
        known = [v for v in values if v is not None]
        if not known:
            return None
        return cls(min=min(known), median=statistics.median(known), max=max(known))


class Phases(Model):
    """Where the time of one rescale went, by the system's own account. Not used for any figure."""

    name: str
    """Why and between which sizes: ``Lost 3→2``."""
    pause: float
    """From the last committed step before it to the first after it, seen by the new rank 0."""
    seconds: dict[str, float]
    """By phase, in the system's words."""


class Undisturbed(Model):
    """Steps at one world size while nothing happened."""

    size: int
    steps: int
    """How many were seen."""
    median: float
    p95: float
    longest: float


class GoalResult(Model):
    """A bound and whether it was kept."""

    figure: str
    """``stall``, ``pause`` or ``changes``."""
    words: str
    """The formula."""
    bound: float
    """Its value with the undisturbed step of the same system in the same report."""
    met_by_median: bool
    met_by_all: bool
    """The worst run keeps it, and every run recovered."""


class EventResult(Model):
    """What one event of one run cost."""

    label: str
    """The event's name; with ``#2`` when it comes for the second time in a run."""
    from_size: int
    to_size: int
    recovered: bool
    """All members trained at the new size within the limit. If not, ``stall`` is what had passed by then."""
    stall: float
    """Longest time between two committed steps of a survivor, the worst survivor's."""
    pause: float | None
    """From the event to the first step at the new size on every member; None if not recovered."""
    redone: int
    """Committed steps that the job was rolled back by, and did again."""
    discarded: int
    """Steps that a survivor began and threw away before they were committed, the worst survivor's."""
    pids_changed: bool
    """A survivor's training process was replaced."""
    changes: int = 0
    """How often the world size changed, as the survivor saw it that saw most."""
    rescales: tuple[Phases, ...] = ()
    """The system's own records of the rescales that belong to this event, in order."""


class Samples(Model):
    """What became of the samples in the history that counts (the last execution of every step)."""

    committed: int
    lost: int
    repeated: int
    problems: tuple[str, ...] = ()
    """Contradictions that the audit found."""


class RunResult(Model):
    """One run: a start and a series of events."""

    scenario: str = "default"
    nodes: int = 2
    """That it started with."""
    start: float | None
    """From the start of the nodes to the first step of all of them; None: they did not get there."""
    step: float | None
    """Median time of an undisturbed step, before the first event."""
    longest_step: float | None
    """The longest one of those: some of them save a checkpoint."""
    undisturbed: tuple[Undisturbed, ...] = ()
    """At each size that the run came by, between the events."""
    events: tuple[EventResult, ...]
    samples: Samples | None
    rolled_back: float
    """Part of all committed work (in samples, or steps where these are not logged) that was rolled back, 0 to 1."""
    own_account: dict[str, object] = {}
    """What the system itself says about its rescales, as it says it. Not used for any figure."""


class EventSummary(Model):
    """One event over all runs of a system."""

    label: str
    from_size: int
    to_size: int
    runs: int
    recovered: int
    stall: Spread
    pause: Spread | None
    redone: Spread
    discarded: Spread
    pids_changed: int
    """Runs in which a survivor's process was replaced."""
    stall_ratio: float | None = None
    """Median stall, as a multiple of elastrain's in the same report; None without elastrain."""
    pause_ratio: float | None = None
    changes: Spread | None = None
    phases: tuple[Phases, ...] = ()
    """Medians over the runs, one for each kind of rescale that belonged to the event."""
    goals: tuple[GoalResult, ...] = ()
    """Of elastrain only."""


class SystemResult(Model):
    about: str
    runs: tuple[RunResult, ...]
    start: Spread | None
    step: Spread | None
    longest_step: Spread | None
    undisturbed: tuple[Undisturbed, ...] = ()
    """Over all runs: medians of the runs' medians and 95th percentiles, the longest of all."""
    events: tuple[EventSummary, ...]
    samples_committed: int
    samples_lost: int
    samples_repeated: int
    rolled_back: Spread | None
    problems: tuple[str, ...] = ()


class Machine(Model):
    """Where and with what it was measured."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    torch: str
    etcd: str
    elastrain: str
    revision: str
    """git's, with ``-dirty`` for uncommitted changes; empty outside a checkout."""
    load: float
    """Load average over the minute before it began: above about 0.5 somebody else used the machine."""


class Report(Model):
    """Everything."""

    format: int = 1
    machine: Machine
    began: str
    """UTC."""
    seconds: float
    events: tuple[str, ...]
    checkpoint_every: int
    """Steps between two durable checkpoints."""
    limit: float
    """Longest time that an event was given to recover."""
    systems: dict[str, SystemResult]
    scenarios: tuple[str, ...] = ("default",)
    lease_ttl: float | None = None
    """Seconds, of scenarios with a short lease; None: none of them ran."""
    busy: dict[str, SystemResult] = {}
    """The same beside a process on every core that does nothing but compute."""
    load_after: float | None = None
    """Load average over the minute before the report was written; it contains the benchmark itself."""
