"""What happens to the ranks again and again, and what they hold after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from leaks_harness.analysis import Sample
from leaks_harness.footprint import footprint
from leaks_harness.leader import Leader

RANKS = 3
SAMPLES = 10
"""In a series, besides the one before the first cycle."""
BLOCK_SECONDS = 0.1
"""After a rank was stopped, when the others' steps have long come to their collective."""
CALM_SECONDS = 0.3
"""Before a look: communicators are closed in the background."""


def planned(leader: Leader) -> None:
    """Shrink and grow: the last rank stands aside and comes back, all processes live."""
    *stayers, last = leader.ranks
    leader.propose(stayers)
    leader.stood_aside(last)
    leader.propose(leader.ranks)


def blocked(leader: Leader) -> None:
    """The last rank is stopped in the middle of training; the others, blocked in a collective with it, are told to
    break it off and go on without it; it wakes, finds its generation gone and comes back."""
    *survivors, last = leader.ranks
    number = leader.number
    last.stop()
    time.sleep(BLOCK_SECONDS)
    leader.abort(f"{last.name} is silent")
    leader.broken(survivors, number)
    leader.propose(survivors)
    last.go_on()
    leader.broken([last], number)
    leader.propose(leader.ranks)


KINDS: Mapping[str, Callable[[Leader], None]] = {"planned": planned, "blocked": blocked}


def series(kind: str, cycles: int, directory: Path, told: Callable[[int], None]) -> dict[str, list[Sample]]:
    """``cycles`` of a kind: what every rank held on the way. ``told`` hears of every cycle. Raises ``Stuck``."""
    found: dict[str, list[Sample]] = {}
    with Leader(RANKS, directory) as leader:
        leader.ready()
        leader.propose(leader.ranks)
        every = max(1, cycles // SAMPLES)
        for cycle in range(cycles + 1):
            if cycle % every == 0:
                time.sleep(CALM_SECONDS)
                for rank in leader.ranks:
                    found.setdefault(rank.name, []).append(Sample(cycle=cycle, footprint=footprint(rank.pid)))
            if cycle < cycles:
                KINDS[kind](leader)
                told(cycle + 1)
    return found
