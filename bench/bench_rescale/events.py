"""What can happen to a job, and the scenarios that such events make up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench_harness.agents import MAX_NODES

START_NODES = 2
MANY_NODES = 8


class Event(StrEnum):
    """One event. It hits the youngest node unless it says otherwise."""

    GROW = "grow"
    GROW_MANY = "grow-many"
    GROW_SPARE = "grow-spare"
    JOIN_ONE = "join-one"
    KILL_RANK = "kill-rank"
    TERM = "term"
    KILL_NODE = "kill-node"
    KILL_FIRST = "kill-first"
    KILL_SPARE = "kill-with-spare"
    SILENT = "silent"
    WAKE = "wake"
    ETCD = "etcd"
    CYCLES = "cycles"
    TRAIN = "train"


EVENTS: Mapping[Event, str] = {
    Event.GROW: "one more node starts",
    Event.GROW_MANY: f"as many nodes as make {MANY_NODES} start at once",
    Event.GROW_SPARE: "a node that stands by, warm, is wanted from now on",
    Event.JOIN_ONE: "the same, beside one node that trains alone",
    Event.KILL_RANK: "kill -9 of the rank of the youngest node; its agent lives and starts another one",
    Event.TERM: "SIGTERM of the agent of the youngest node, as when its pod is deleted",
    Event.KILL_NODE: "kill -9 of agent and rank of the youngest node, as when its container is killed; it is reported",
    Event.KILL_FIRST: "the same to the first node, which holds rank 0 (and torchrun's c10d store)",
    Event.KILL_SPARE: "the same to the youngest node that trains, while another one stands by",
    Event.SILENT: "SIGSTOP of agent and rank of the youngest node: its connections stay, nothing answers",
    Event.WAKE: "SIGCONT of the silent node",
    Event.ETCD: "kill -9 of etcd, which restarts on its data after --etcd-away",
    Event.TRAIN: "nothing, for --train minutes: what is taken for a loss, and what training sends",
    Event.CYCLES: "silent and wake --cycles times; what threads, descriptors and memory each rank keeps",
}
NEED_AGENTS = frozenset({Event.GROW_SPARE, Event.JOIN_ONE, Event.KILL_SPARE, Event.ETCD, Event.CYCLES, Event.TRAIN})
"""Events without an equivalent in torchrun and torchft."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Events of one run, in order."""

    about: str
    events: tuple[Event, ...]
    nodes: int = START_NODES
    """At the start."""
    short_lease: bool = False
    """The lease TTL is that of ``--lease-ttl`` instead of the default."""


DEFAULT = "default"
SCENARIOS: Mapping[str, Scenario] = {
    DEFAULT: Scenario(
        "nodes come, leave and die one by one",
        (Event.GROW, Event.KILL_RANK, Event.TERM, Event.GROW, Event.KILL_NODE),
    ),
    "kill-first": Scenario("the node that holds rank 0 dies", (Event.KILL_FIRST,), nodes=3),
    "spare": Scenario("a warm node takes the next place", (Event.GROW_SPARE, Event.KILL_SPARE)),
    "join": Scenario("a warm node joins one that trains alone", (Event.JOIN_ONE,), nodes=1),
    "grow-many": Scenario(f"from {START_NODES} to {MANY_NODES} nodes at once", (Event.GROW_MANY,)),
    "silent": Scenario("a node falls silent, and wakes", (Event.SILENT, Event.WAKE), nodes=3, short_lease=True),
    "etcd": Scenario("etcd dies and comes back", (Event.ETCD,)),
    "train": Scenario("three nodes train undisturbed", (Event.TRAIN,), nodes=3),
    "cycles": Scenario("what many rescales leave behind", (Event.CYCLES,), nodes=3, short_lease=True),
}


def sizes(events: Sequence[Event], start: int = START_NODES) -> list[int]:
    """World size before each event and after the last.

    Raises ``ValueError`` if it leaves 1 to ``MAX_NODES``, or if a node wakes and none is silent.
    """
    same = {Event.KILL_RANK, Event.KILL_SPARE, Event.ETCD, Event.CYCLES, Event.TRAIN}
    more = {Event.GROW, Event.GROW_SPARE, Event.JOIN_ONE, Event.WAKE}
    path, silent = [start], 0
    for event in events:
        size = path[-1] + (0 if event in same else 1 if event in more else -1)
        if event is Event.GROW_MANY:
            size = MANY_NODES
        after = f"{event} after {len(path) - 1} events"
        silent += (event is Event.SILENT) - (event is Event.WAKE)
        if silent < 0:
            raise ValueError(f"{after}: no node is silent, {Event.SILENT} must come first")
        if not 1 <= size <= MAX_NODES:
            raise ValueError(f"{after}: {size} nodes, must be 1 to {MAX_NODES}")
        path.append(size)
    return path


def labels(events: Sequence[Event]) -> list[str]:
    """A name for each, with ``#2`` for the second of its kind."""
    names = [events[: i + 1].count(e) for i, e in enumerate(events)]
    return [e.value if n == 1 else f"{e.value} #{n}" for e, n in zip(events, names, strict=True)]


def kind(label: str) -> Event:
    """The event that was given this label."""
    return Event(label.partition(" #")[0])
