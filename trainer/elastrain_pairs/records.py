"""The etcd records of a job's pre-flight checks under ``pairs/``. Each is written and read by one version of
elastrain."""

from __future__ import annotations

from elastrain.api.base import Record


class Report(Record):
    """The result of one trial, from one of its two ends."""

    round: int
    partner: str
    """Id of the other participant."""
    ok: bool
    """The sum arrived and was correct."""
    latency: float = 0.0
    """Seconds of the fastest all-reduce of a few bytes."""
    rate: float = 0.0
    """GB/s (1e9 bytes of the buffer) of the fastest all-reduce of a large one."""
    why: str = ""
    """The error; empty if ``ok``."""


class Participant(Record):
    """A pre-flight check that takes part. Written by that check under its lease, so that the record ends with the
    check; read by the leader of its group."""

    id: str
    """Unique for all time: ``<worker>.<random>``."""
    worker: str
    node: str = ""
    address: str
    port: int
    """TCP port at which the participant meets a partner that follows it in a pair."""
    reports: tuple[Report, ...] = ()


class Sick(Record):
    """A node with a faulty network."""

    id: str
    """Id of the node's participant."""
    node: str = ""
    message: str
    """The partners of the failed pairs, and their measurements."""


class Group(Record):
    """Participants that are measured against each other. Written by the leading participant, whose id ends the key;
    read by the others."""

    participants: tuple[str, ...]
    """Ids of all participants, including those whose node another worker's check measures."""
    rounds: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Ids of the pairs of each round; a round has each id once at most. The first of a pair serves the meeting
    point."""
    done: bool = False
    sick: tuple[Sick, ...] = ()
    """The faulty nodes; set with ``done``."""
