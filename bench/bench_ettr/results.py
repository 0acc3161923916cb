"""The figures as types: what ``--json`` writes."""

from __future__ import annotations

from bench_harness.machine import Machine
from bench_harness.stats import Model
from bench_rescale.results import Samples


class Fired(Model):
    """What was done to a node, and when."""

    at: float
    """Seconds after the begin of the measured time."""
    cause: str
    kind: str
    """Of the trace; ``join`` for a node that comes, ``skipped`` for a failure that no node was left for."""
    node: int


class Rescaled(Model):
    """elastrain's own record of one rescale."""

    reason: str
    from_size: int
    to_size: int
    pause: float
    phases: dict[str, float]


class RunResult(Model):
    """One system under one trace. Times are seconds."""

    system: str
    about: str
    start: float
    """From the start of the nodes to the begin of the measured time."""
    load: float
    """Load average at the begin."""
    wall: float
    ettr: float
    """Productive part of ``wall``, 0 to 1."""
    lost: dict[str, float]
    """By cause; with the productive time they add up to ``wall``."""
    step: float
    """Of an undisturbed step at full size, the median."""
    longest: float
    """Between two committed steps."""
    rolled_back: int
    """Committed steps that the job was rolled back by."""
    ended: int
    """Nodes that ended by themselves and were started again."""
    hangs: int
    """Times that all nodes were started again since no step was committed for long."""
    away: float
    """Seconds from the loss of a node to the start of its replacement, of all nodes together."""
    missing: float
    """Seconds of steps without a rank, of all missing ranks together."""
    of_paid: float
    """Productive part of the time of the nodes that are there, 0 to 1."""
    samples: Samples | None
    fired: tuple[Fired, ...]
    rescales: tuple[Rescaled, ...] = ()


class Report(Model):
    """Everything."""

    machine: Machine
    ranks: int
    spares: int = 0
    """Warm nodes of elastrain beyond these."""
    minutes: float
    rate: float
    """Failures an hour."""
    seed: int
    repair: float
    """Seconds until a lost node is replaced."""
    pace: float
    """Seconds that a played accelerator takes for a sample."""
    checkpoint_every: int
    runs: tuple[RunResult, ...]
