"""The failures of a run: a pure function of seed, rate and minutes.

Causes and their frequencies are those of Llama 3's pre-training ("The Llama 3 Herd of Models", 2024, section 3.3.4):
466 interruptions in 54 days on 16,384 cards, 419 of them unexpected (table 5) and 47 planned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

PUBLISHED_RATE = 466 / (54 * 24)
"""Interruptions an hour."""


class Kind(StrEnum):
    """What a cause does to a node."""

    NODE = "node"
    RANK = "rank"
    FROZEN = "frozen"
    SLOW = "slow"
    RECLAIMED = "reclaimed"


KINDS: Mapping[Kind, str] = {
    Kind.NODE: "kill -9 of agent and rank, reported by its host; another node starts after --repair",
    Kind.RANK: "kill -9 of the rank; the node's agent lives",
    Kind.FROZEN: "SIGSTOP of agent and rank: connections stay, nothing answers; SIGCONT after --repair",
    Kind.SLOW: "the rank is stopped for half of the time, until --repair is over",
    Kind.RECLAIMED: "SIGTERM of the agent: a planned interruption with notice, as of a spot node; another node starts "
    "after --repair",
}

CAUSES: Mapping[str, tuple[int, Kind]] = {
    "faulty GPU": (148, Kind.NODE),
    "GPU HBM3 memory": (72, Kind.RANK),
    "software bug": (54, Kind.RANK),
    "planned": (47, Kind.RECLAIMED),
    "network switch or cable": (35, Kind.FROZEN),
    "host maintenance": (32, Kind.NODE),
    "GPU SRAM memory": (19, Kind.RANK),
    "GPU system processor": (17, Kind.NODE),
    "NIC": (7, Kind.FROZEN),
    "NCCL watchdog": (7, Kind.FROZEN),
    "silent data corruption": (6, Kind.RANK),
    "thermal interface": (6, Kind.SLOW),
    "SSD": (3, Kind.NODE),
    "power supply": (3, Kind.NODE),
    "server chassis": (2, Kind.NODE),
    "IO expansion board": (2, Kind.NODE),
    "dependency": (2, Kind.RANK),
    "CPU": (2, Kind.NODE),
    "system memory": (2, Kind.NODE),
}
"""Cause -> interruptions as published, and what is done here. The kind is this project's reading of the cause."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One interruption."""

    at: float
    """Seconds after the begin of the measured time."""
    cause: str
    kind: Kind
    place: float
    """0 to 1: which of the nodes that then train, in order of their numbers."""


def trace(seed: int, rate: float, minutes: float) -> tuple[Failure, ...]:
    """Failures of a Poisson process of ``rate`` an hour, in order. The same arguments give the same trace, and more
    minutes a longer one with the same begin. Cause and place of each are drawn independently of its time.
    """
    rng = random.Random(f"{seed} {rate:g}")
    causes, weights = list(CAUSES), [count for count, _ in CAUSES.values()]
    found: list[Failure] = []
    now = rng.expovariate(rate / 3600)
    while now < minutes * 60:
        [cause] = rng.choices(causes, weights)
        found.append(Failure(now, cause, CAUSES[cause][1], rng.random()))
        now += rng.expovariate(rate / 3600)
    return tuple(found)
