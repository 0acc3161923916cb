"""The figures as types: what ``--json`` writes."""

from __future__ import annotations

from pydantic import Field

from bench_harness.machine import Machine
from bench_harness.stats import Model


class Phases(Model):
    """Where the time of one rescale went, by elastrain's own record. No other figure depends on it."""

    name: str
    """Reason and sizes: ``Lost 3→2``."""
    pause: float
    """From the last committed step before it to the first after it, seen by the new rank 0."""
    seconds: dict[str, float]
    """By phase."""


class Undisturbed(Model):
    """Steps at one world size while nothing happened."""

    size: int
    steps: int
    """Number of steps seen."""
    median: float
    p95: float
    longest: float


class EventResult(Model):
    """The cost of one event of one run."""

    label: str
    """The event's name; with ``#2`` when it comes for the second time in a run."""
    from_size: int
    to_size: int
    recovered: bool
    """All members trained at the new size within the limit. If not, ``stall`` is the time that had passed by then."""
    stall: float
    """Longest time between two committed steps of a survivor, the worst survivor's."""
    time_to_size: float | None
    """From the event to the first step at the new size on every member; None if not recovered."""
    redone: int
    """Committed steps that the job was rolled back by."""
    discarded: int
    """Steps that a survivor began and discarded before they were committed, the worst survivor's."""
    pids_changed: bool
    """A survivor's training process was replaced."""
    rescales: tuple[Phases, ...] = ()
    """elastrain's records of the rescales that belong to this event, in order."""
    steps: int = 0
    """Steps that a member committed at the new size until the next thing was done: the most of all members."""
    seconds: float = 0.0
    """From the event until then."""
    carried: int | None = None
    """Bytes that all nodes sent meanwhile. None: not counted."""


class Samples(Model):
    """Samples in the history that counts (the last execution of every step)."""

    committed: int
    lost: int
    repeated: int
    problems: tuple[str, ...] = ()
    """Contradictions that the audit found."""


class Footprint(Model):
    """Resources of one process at one moment."""

    threads: int
    fds: int
    private_kib: int
    """Written memory that no other process shares."""


class RunResult(Model):
    """One run: a start and a series of events."""

    system: str = ""
    state_mib: int = 0
    """Frozen weights below the model."""
    busy: bool = False
    """Beside a load on every core."""
    scenario: str = "default"
    nodes: int = 2
    """At the start."""
    start: float | None
    """From the start of the nodes to the first step of all of them; None: it did not come."""
    undisturbed: tuple[Undisturbed, ...] = ()
    """At each size of the run, between the events."""
    events: tuple[EventResult, ...]
    samples: Samples | None
    rolled_back: float
    """Rolled-back part of all committed work, 0 to 1."""
    footprints: dict[str, tuple[Footprint, ...]] = Field(default_factory=dict)
    """By rank, one after each tenth of the cycles."""

    @property
    def subject(self) -> str:
        """The system, with its state if that is more than the model's."""
        return f"{self.system}, {self.state_mib} MiB" if self.state_mib else self.system


class Report(Model):
    """Everything."""

    machine: Machine
    checkpoint_every: int
    """Steps between two durable checkpoints."""
    lease_ttl: int
    """Seconds, in scenarios with a short lease."""
    limit: float
    """Seconds that an event may take."""
    cycles: int
    runs: tuple[RunResult, ...]
