"""The decisions of local mode, which correspond to the operator's decisions for one machine. Pure.

The operator also handles pods, budgets per cause and other jobs. Here a worker is a process that runs, or has ended
with a termination record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from elastrain.api.names import DIVERGED
from elastrain.api.records import Outcome, Target, Termination
from elastrain_resource.sizing.leaving import WorkerFacts, leave_order, surplus

FATAL = ("Usage", DIVERGED)
"""Reasons for which a retry is useless."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 10.0
RECORD_SECONDS = 2.0
"""Most seconds for which the last record is awaited after the end of all workers."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that was started."""

    name: str
    ordinal: int
    ready: bool = False
    """The worker is in the generation in force, or is ready for the next one."""
    leaving: bool = False
    """The worker was asked to leave."""
    ended: Termination | None = None
    ended_at: float = 0.0
    trained: bool = False
    """The worker has been in a generation in force."""
    holds: bool = False
    """Its training has ended, and it holds the final state for rank 0's script."""


@dataclass(frozen=True, slots=True)
class Observed:
    """All inputs of a decision."""

    min: int
    max: int
    desired: int
    """Desired number of workers; 0 while suspended."""
    backoff_limit: int
    workers: Sequence[Worker] = ()
    finished: bool = False
    """``progress.finished``."""
    first: str = ""
    """Worker of rank 0 in the newest generation; empty: there is none."""
    stopping: bool = False
    """The user stops the job (Ctrl-C): drain all workers."""
    spares: int = 0
    """Warm spares beyond ``desired``, started after the job has trained."""


class Result(StrEnum):
    """How a local job ended."""

    FINISHED = "finished"
    FAILED = "failed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Plan:
    """What local mode does next; ``runner`` executes it."""

    target: Target
    start: int = 0
    """Number of workers to start, with new ordinals."""
    result: Result | None = None
    """The result of the job, set once no worker runs."""
    failure: Worker | None = None
    """The worker whose failure ends the job."""
    again_at: float | None = None
    """Time of the next decision if no event comes earlier."""


def plan(seen: Observed, now: float) -> Plan:
    """The target, the workers to start and, at the end, the result. ``runner`` executes the plan. ``now``: monotonic
    seconds."""
    running = [w for w in seen.workers if w.ended is None]
    failures = [w for w in seen.workers if w.ended is not None and w.ended.outcome is Outcome.FAILED]
    failure = _fatal(failures, seen)
    diverged = any(w.ended.reason == DIVERGED for w in failures if w.ended)
    if not diverged and (_finished(seen) or _finishing(seen, running)):
        # No worker is asked to leave: ranks end by themselves, and agents that start late end at once.
        target = _target(seen, seen.desired, [w for w in running if w.leaving], "")
        if running:
            return Plan(target)
        complete_at = _complete_at(seen)
        return Plan(target, result=Result.FINISHED) if now >= complete_at else Plan(target, again_at=complete_at)
    if failure is not None:
        result = None if running else Result.FAILED
        return Plan(_target(seen, 0, running, "Failed"), result=result, failure=failure)
    if seen.stopping or seen.desired == 0:
        reason = "Stop" if seen.stopping else "Suspend"
        return Plan(_target(seen, 0, running, reason), result=None if running else Result.DRAINED)
    return _resize(seen, running, failures, now)


def _finished(seen: Observed) -> bool:
    """Whether the script of rank 0 has exited with 0; without a generation, the scripts of all workers."""
    done = [w.name for w in seen.workers if _has_finished(w)]
    return seen.finished or (seen.first in done if seen.first else bool(done) and len(done) == len(seen.workers))


def _finishing(seen: Observed, running: Sequence[Worker]) -> bool:
    """Whether training has ended, and rank 0's script may still run: no worker is started or asked to leave.

    As of the operator's ``policy.ending.verdict.finishing``.
    """
    ended = any(map(_has_finished, seen.workers))
    return any(w.holds for w in running) or (ended and any(w.ready or not seen.first for w in running))


def _complete_at(seen: Observed) -> float:
    """When the records of a job whose workers have all finished are complete: as the last one says so. It comes by a
    watch, so perhaps later than the exits; scripts that never join write none."""
    if seen.finished or not seen.first:
        return 0.0
    return max(w.ended_at for w in seen.workers) + RECORD_SECONDS


def _has_finished(worker: Worker) -> bool:
    return worker.ended is not None and worker.ended.outcome is Outcome.FINISHED


def _resize(seen: Observed, running: list[Worker], failures: list[Worker], now: float) -> Plan:
    staying = [w for w in running if not w.leaving]
    # Before the job has trained, a spare would only slow its start down.
    spares = seen.spares if any(w.ready or w.trained for w in seen.workers) else 0
    facts = [WorkerFacts(w.name, w.ordinal, trains=w.ready, ready=w.ready) for w in staying]
    by_name = {w.name: w for w in staying}
    too_many = [by_name[w.name] for w in surplus(leave_order(facts), seen.desired, spares)]
    leaving = [w for w in running if w.leaving] + too_many
    target = _target(seen, seen.desired, leaving, "Drain" if leaving else "")
    missing = seen.desired + spares - len(staying) + len(too_many)
    if missing <= 0 or too_many:
        return Plan(target)
    again_at = not_before(failures)
    return Plan(target, again_at=again_at) if now < again_at else Plan(target, start=missing)


def not_before(failures: Sequence[Worker]) -> float:
    """The time at which a failed worker may be replaced: at once after the first failure in a row, then after a
    growing, bounded pause. The loss of a worker that has trained starts a new row, since waiting does not cure machine
    failures."""
    ordered = sorted(failures, key=lambda w: w.ended_at)
    row = next((i for i, w in enumerate(reversed(ordered), 1) if w.trained), len(ordered))
    if row < 2:
        return 0.0
    pause: float = min(RETRY_SECONDS * 2 ** min(row - 2, 10), RETRY_SECONDS_MAX)
    return ordered[-1].ended_at + pause


def _fatal(failures: Sequence[Worker], seen: Observed) -> Worker | None:
    """The failure that ends the job. Only failures of the script count; lost workers are always replaced. Another try
    does not help if the scripts of all workers end by one error before any has trained."""
    for worker in failures:
        if worker.ended is not None and worker.ended.reason in FATAL:
            return worker
    scripts = [w for w in failures if w.ended is not None and w.ended.reason == "ScriptFailed"]
    round_of_all = len(scripts) == len(seen.workers) >= seen.desired and not any(w.trained for w in scripts)
    errors = {w.ended.message for w in scripts if w.ended is not None}
    alike = round_of_all and len(errors) == 1 and errors != {""}
    return scripts[-1] if alike or len(scripts) > seen.backoff_limit else None


def _target(seen: Observed, desired: int, leaving: Sequence[Worker], reason: str) -> Target:
    names = tuple(w.name for w in leaving) if desired else ()
    return Target(min=seen.min, max=seen.max, desired=desired, leaving=names, reason=reason)
