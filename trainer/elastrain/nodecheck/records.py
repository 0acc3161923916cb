"""What the pre-flight checks of a job's workers tell each other in etcd, under ``pairs/``."""

from __future__ import annotations

from elastrain.api.records import Record


class Report(Record):
    """How one match went, as one of the two saw it."""

    round: int
    partner: str
    """Id of the other contestant."""
    ok: bool
    """The sum came, and was right."""
    latency: float = 0.0
    """Seconds of the fastest all-reduce of a few bytes."""
    rate: float = 0.0
    """GB/s (1e9 bytes of the buffer) of the fastest all-reduce of a large one."""
    why: str = ""
    """What went wrong; empty if it is ``ok``."""


class Contestant(Record):
    """One pre-flight check that takes part. Written by that check under its lease, so that it is there as long as the
    check runs; read by the one that leads its heat."""

    id: str
    """Unique for ever: ``<worker>.<random>``."""
    worker: str
    node: str = ""
    address: str
    port: int
    """TCP port at which it meets a partner that comes after it in a pair."""
    reports: tuple[Report, ...] = ()


class Sick(Record):
    """A node whose network is blamed."""

    id: str
    """Of the contestant that took part for it."""
    node: str = ""
    words: str
    """With whom it failed, and the figures."""


class Heat(Record):
    """Contestants that are measured against each other. Written by the contestant that leads it, whose id is the key's
    last part; read by the others."""

    contestants: tuple[str, ...]
    """Ids of all whom it concerns, also of those whose node is measured by another worker's check."""
    rounds: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Ids of the pairs of each round; nobody is twice in one. The first of a pair serves the meeting point."""
    done: bool = False
    sick: tuple[Sick, ...] = ()
    """Whom the measurements blame; set with ``done``."""
