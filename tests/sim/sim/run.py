"""One schedule, from its seed to its end."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from dataclasses import dataclass, field

import structlog

from sim.faults import Faults
from sim.invariants import Invariants, Violation, Wedge
from sim.world import World, line

BEGIN = 1.0
FAULTS_END = 45.0
QUIET = 75.0
"""Seconds without faults after which everything is whole again."""
WATCHED = 15.0
"""Seconds at the end in which a job that trains commits steps."""
GONE = 60.0
"""Seconds after which nothing of a deleted job is left."""
MOST_EVENTS = 200_000


@dataclass
class Result:
    seed: int
    events: int = 0
    generations: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    """A number that two runs have in common only if they were the same."""
    failure: str = ""


def simulate(seed: int, echo: bool = False) -> Result:
    """Run the schedule of ``seed``; its result says what failed, if anything."""
    quieten()
    world = World(seed)
    if echo:
        world.echo = print
    faults, invariants = Faults(world), Invariants(world)
    result = Result(seed, faults=faults.counts)
    try:
        faults.plan(BEGIN, FAULTS_END)
        _until(world, invariants, FAULTS_END + QUIET - WATCHED)
        since = world.clock.now
        _until(world, invariants, since + WATCHED)
        invariants.trains_or_says_why(since)
        world.note("the job is deleted")
        world.api.delete("jobs", "job")
        _until(world, invariants, world.clock.now + GONE)
        invariants.nothing_is_left()
    except Exception as error:
        if not isinstance(error, (Violation, Wedge)):
            raise
        result.failure = message(world, error)
    result.events, result.trace = world.clock.events, world.trace_hash
    result.generations = len(world.ledger.generations)
    result.steps = len(world.ledger.sums)
    return result


def message(world: World, error: Exception) -> str:
    """With all that is needed to see it again."""
    last = "\n".join("  " + line(entry) for entry in world.lines)
    return (
        f"seed {world.seed} at {world.clock.now:.3f} s: {error}\nthe schedule's last events:\n{last}\n"
        f"replay: PYTHONPATH=tests/sim python -m sim --seed {world.seed} --trace"
    )


def _until(world: World, invariants: Invariants, when: float) -> None:
    clock = world.clock
    while clock.step(when):
        invariants.check()
        if clock.events > MOST_EVENTS:
            raise Wedge(f"the world comes to rest: {MOST_EVENTS} events in {clock.now:.1f} s")


def quieten() -> None:
    """No logs; and no garbage collector in the middle: a world is dropped as a whole."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    gc.freeze()
