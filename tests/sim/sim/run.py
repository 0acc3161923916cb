"""One schedule, from its seed to its end."""

from __future__ import annotations

import gc
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import structlog

from elastrain_operator import clock as operator_clock
from elastrain_operator.pod import leaving
from sim.faults import Faults
from sim.invariants import Invariants, Violation, Wedge
from sim.strangers import Strangers
from sim.world import World, line

BEGIN = 1.0
FAULTS_END = 45.0
QUIET = 75.0
"""Seconds without faults after which everything is whole again."""
LOOK = 4.0
"""Seconds between two looks whether it is; a job that trains has committed a step meanwhile."""
GONE = 120.0
"""Seconds after which nothing of a deleted job is left. After an outage of the API server, an operator that lists an
empty resource looks for lost deletions every ``--resync`` seconds (60 in the simulation), and sweeps after that."""
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
    with quiet():
        return _simulate(seed, echo)


@mock.patch.object(leaving, "DRAIN_EXTRA", 10.0)
def _simulate(seed: int, echo: bool) -> Result:
    world = World(seed)
    operator_clock.now = world.time_of_day
    if echo:
        world.echo = print
    faults, strangers, invariants = Faults(world), Strangers(world), Invariants(world)
    result = Result(seed, faults=faults.counts)
    try:
        over = max(faults.plan(BEGIN, FAULTS_END), strangers.plan(BEGIN, FAULTS_END))
        _until(world, invariants, over)
        _settled(world, invariants, QUIET, invariants.trains_or_says_why)
        world.note("the job is deleted")
        world.api.delete("jobs", "job")
        _settled(world, invariants, GONE, invariants.nothing_is_left)
    except (Violation, Wedge) as error:
        result.failure = message(world, error)
    except Exception as error:  # of the product, or of the simulation: the seed is what one needs to know
        result.failure = f"{message(world, error)}\n{traceback.format_exc()}"
    result.faults += strangers.counts
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


def _settled(world: World, invariants: Invariants, seconds: float, check: Callable[[float], None]) -> None:
    """Within so many seconds ``check`` must hold: it gets the time since when there was a quiet moment."""
    deadline = world.clock.now + seconds
    while True:
        since = world.clock.now
        _until(world, invariants, since + LOOK)
        try:
            check(since)
        except Wedge:
            if world.clock.now >= deadline:
                raise
        else:
            return


def _until(world: World, invariants: Invariants, when: float) -> None:
    clock, ledger = world.clock, world.ledger
    checked = -1
    while clock.step(when):
        if ledger.news != checked:
            checked = ledger.news
            invariants.check()
        if clock.events > MOST_EVENTS:
            raise Wedge(f"the world comes to rest: {MOST_EVENTS} events in {clock.now:.1f} s")


@contextmanager
def quiet() -> Iterator[None]:
    """No logs, and no garbage collector in the middle: a world is dropped as a whole. All is as before at the end."""
    logs, time_of_day = structlog.get_config(), operator_clock.now
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        logging.disable(disabled)
        structlog.configure(**logs)
        operator_clock.now = time_of_day
