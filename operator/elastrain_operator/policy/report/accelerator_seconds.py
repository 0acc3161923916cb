"""How a job uses its accelerator seconds: training, rescaling, waiting, redone, spare.

The last observation is assumed to hold until now. Every change wakes the loop, so the error is below 50 ms while an
operator runs. The sums are in the status for the next operator, which counts the time since by its own first
observation: the times inside pods are those of other machines' clocks. A pause still owed then counts as training.

The trainer measures a pause when it is over. The pause is then *owed*: the next seconds of the generation count as
``rescaling`` until the debt is paid, and booked seconds never move. So no part ever decreases, and the sum of the parts
always equals the seconds held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from elastrain.api.records import Progress, Rescale
from elastrain_operator.facts import Coordination, Pod
from elastrain_resource.job import AcceleratorSeconds, GenerationStatus
from elastrain_resource.job.reported import step_seconds
from elastrain_resource.job.training_time import CAUSE_OF_PHASE

Use = Literal["training", "rescaling", "waiting"]

DIGITS = 3
"""Decimals of seconds in the status."""


class Usage(AcceleratorSeconds):
    """The sums, and what the operator has observed last and still owes: in memory only."""

    held: int = 0
    """Accelerators that the job's pods hold."""
    in_generation: int = 0
    """Held accelerators of workers in the generation in force."""
    standing_by: int = 0
    """Held accelerators of warm spares."""
    use: Use = "waiting"
    """State of the accelerators in the generation."""
    owed_rescaling: float = 0.0
    """Seconds of pauses measured by the trainer and not yet subtracted from ``training``. Negative: observed by the
    operator and not yet measured by the trainer."""
    owed_redone: float = 0.0
    """The same for repeated steps."""
    unpriced_steps: int = 0
    """Repeated steps of unknown duration."""


@dataclass(frozen=True, slots=True)
class TrainingWorkers:
    """The workers of the generation in force, and what they do."""

    workers: frozenset[str] = frozenset()
    """Names of its live workers."""
    use: Use = "waiting"
    spares: frozenset[str] = frozenset()
    """Names of the warm spares that are ready to train."""


def account(
    before: AcceleratorSeconds | None,
    pods: Iterable[Pod],
    place: TrainingWorkers | None,
    progress: Progress | None,
    now: datetime,
) -> Usage:
    """The usage up to ``now``, with the observation that continues it.

    ``before`` is None for a job without usage: it begins now; without an observation it is another operator's.
    ``place`` is None while etcd is unknown: the last generation is assumed to continue training, as far as its pods
    exist.
    """
    pods = tuple(pods)
    held = sum(p.accelerators for p in pods if _holds(p, now))
    old = before if isinstance(before, Usage) else None
    if place is None:
        inside, use = (min(old.in_generation, held), old.use) if old else (held if before else 0, "training")
        spare = min(old.standing_by, held - inside) if old else 0
    else:
        inside = sum(p.accelerators for p in pods if p.name in place.workers and _holds(p, now))
        spare = sum(p.accelerators for p in pods if p.name in place.spares and _holds(p, now)) if place.spares else 0
        use = place.use
    seen: dict[str, Any] = {"held": held, "in_generation": inside, "use": use, "standing_by": spare}
    if old is None:
        sums = _sums(before) if before else {"generation": progress.generation if progress else 0}
        old = Usage(**sums, **seen)
        pods = ()  # what is held now has been held since
    since = datetime.fromisoformat(old.until) if old.until else now
    booked = _spent(old, _held_seconds(old, pods, since, now), max(0.0, (now - since).total_seconds()))
    seen["until"] = max(since, now).isoformat()
    # One copy only: this runs in every pass over every job, and copies are its main cost.
    return old.model_copy(update=_take_in(old, {**booked, **seen}, progress))


def observed(usage: AcceleratorSeconds | None) -> Usage | None:
    """``usage`` if it is this operator's."""
    return usage if isinstance(usage, Usage) else None


def continued(usage: Usage, now: datetime) -> Usage:
    """The usage up to ``now`` if nothing has changed since."""
    if usage.until is None:
        return usage
    seconds = max(0.0, (now - datetime.fromisoformat(usage.until)).total_seconds())
    return usage.model_copy(update=_spent(usage, usage.held * seconds, seconds))


def place(
    generation: GenerationStatus | None, seen: Coordination, finishing: bool, standing_by: frozenset[str] = frozenset()
) -> TrainingWorkers:
    """The workers of the generation in force, and whether it trains; ``standing_by``: warm spares (names).

    A generation trains until it is known to be broken: a member is gone or reports a failed collective, or the leader
    has ended the generation. The rest of it then waits if it is smaller than ``target.min``, else it is rescaling.
    While the job is ``finishing``, workers exit one by one, and the generation is not broken.
    """
    if generation is None or not generation.size:
        return TrainingWorkers()
    number, newest = generation.number, seen.generation
    current = newest is not None and newest.number == number
    ids = {m.id for m in (newest.members if newest and current else seen.earlier(number))}
    alive = [m for m in seen.members if m.id in ids or (not current and m.generation == number)]
    workers = frozenset(m.worker for m in alive)
    spares = standing_by - workers
    ended = newest is not None and number in newest.ended
    broken = ended or len(alive) < generation.size or any(m.broken >= number for m in alive)
    if finishing or not broken:
        return TrainingWorkers(workers, "training", spares)
    few = seen.target is not None and len(alive) < seen.target.min
    return TrainingWorkers(workers, "waiting" if few else "rescaling", spares)


def fresh(progress: Progress | None, after: int) -> tuple[Rescale, ...]:
    """Rescales measured since generation ``after``, oldest first. Trainers report only the newest ten."""
    if progress is None:
        return ()
    return tuple(r for r in progress.rescales if after < r.generation <= progress.generation)


def rounded(usage: AcceleratorSeconds | None) -> AcceleratorSeconds | None:
    """The usage as written to the status."""
    if usage is None:
        return None
    sums = _sums(usage)
    sums |= {name: round(value, DIGITS) for name, value in sums.items() if isinstance(value, float)}
    sums["rescaling_phases"] = {name: round(spent, DIGITS) for name, spent in usage.rescaling_phases.items()}
    return AcceleratorSeconds.model_construct(**sums)


def _sums(usage: AcceleratorSeconds) -> dict[str, Any]:
    """The fields of the status, those of a newer operator included."""
    return {name: getattr(usage, name) for name in AcceleratorSeconds.model_fields} | (usage.model_extra or {})


def dissolved(usage: AcceleratorSeconds | None) -> AcceleratorSeconds | None:
    """The usage of a job that has just ended: its remaining workers do not train."""
    return usage and usage.model_copy(update={"in_generation": 0, "standing_by": 0, "use": "waiting"})


def differs(old: AcceleratorSeconds | None, new: AcceleratorSeconds | None) -> bool:
    """Whether ``new`` contains what the next operator could not derive. Passing seconds alone do not cause a status
    write."""
    if old is None or new is None:
        return old is not new
    return (old.generation, old.redone_steps) != (new.generation, new.redone_steps)


def _spent(usage: Usage, held: float, seconds: float) -> dict[str, Any]:
    """The changed fields: ``held`` accelerator seconds of ``seconds`` seconds, divided by the observation at their
    start."""
    inside = min(usage.in_generation * seconds, held)
    waiting = held - inside
    if usage.use == "training":
        rescaling = min(max(usage.owed_rescaling, 0.0), inside)
        redone = min(usage.owed_redone, inside - rescaling)
        training, paid = inside - rescaling - redone, rescaling
    else:
        training = redone = 0.0
        rescaling = inside if usage.use == "rescaling" else 0.0
        waiting += inside - rescaling
        paid = inside  # the pause that the trainer reports later contains all of it
    spare = min(usage.standing_by * seconds, held - inside)
    waiting -= spare
    return {
        "spare": usage.spare + spare,
        "training": usage.training + training,
        "rescaling": usage.rescaling + rescaling,
        "waiting": usage.waiting + waiting,
        "redone": usage.redone + redone,
        "owed_rescaling": usage.owed_rescaling - paid,
        "owed_redone": usage.owed_redone - redone,
    }


def _take_in(old: Usage, now: dict[str, Any], progress: Progress | None) -> dict[str, Any]:
    """``now`` with the trainer's measurements since: pauses of the previous generation's workers, and lost steps."""
    if progress is None or (progress.generation == old.generation and not old.unpriced_steps):
        return now
    owed, lost, inside = now["owed_rescaling"], 0, now["in_generation"]
    phases = dict(old.rescaling_phases)
    for rescale in fresh(progress, old.generation):
        paused = min(rescale.from_size or rescale.to_size, rescale.to_size) / max(rescale.to_size, 1)
        # What the operator booked beyond the trainer's measurement is its own delay; it does not reduce the next pause.
        owed = max(0.0, owed + _believed(rescale.pause_seconds) * inside * paused)
        for phase, seconds in _of_pause(rescale).items():
            phases[phase] = phases.get(phase, 0.0) + seconds * inside * paused
        lost += max(0, rescale.lost_steps)
    unpriced = old.unpriced_steps + lost
    price = step_seconds(progress) if unpriced else None
    return now | {
        "owed_rescaling": owed,
        "rescaling_phases": phases,
        "owed_redone": now["owed_redone"] + (unpriced * price * inside if price else 0.0),
        "unpriced_steps": 0 if price else unpriced,
        "redone_steps": old.redone_steps + lost,
        "generation": progress.generation,
    }


def _of_pause(rescale: Rescale) -> dict[str, float]:
    """Seconds of the pause by known phase, together at most the pause. A planned change detects nothing, and connects
    beside training."""
    planned = "detect" not in rescale.phases
    found = {
        phase: _believed(rescale.phases[phase])
        for phase in CAUSE_OF_PHASE
        if phase in rescale.phases and not (planned and phase == "connect")
    }
    whole, pause = sum(found.values()), _believed(rescale.pause_seconds)
    return found if whole <= pause else {phase: seconds / whole * pause for phase, seconds in found.items()}


def _believed(seconds: float) -> float:
    """A job's reports are untrusted: a value that cannot be a pause counts as 0."""
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _held_seconds(usage: Usage, pods: tuple[Pod, ...], since: datetime, now: datetime) -> float:
    """Accelerator seconds that pods held between ``since`` and ``now``. Pods that no longer exist in the API server
    count until ``now``, the first observation without them; so do, after a start of the operator, those held before."""
    seconds = max(0.0, (now - since).total_seconds())
    known = [p for p in pods if p.bound is not None and not _released(p, since)]
    vanished = max(0, usage.held - sum(p.accelerators for p in known if p.bound and p.bound <= since))
    return vanished * seconds + sum(p.accelerators * _overlap(p, since, now) for p in known)


def _overlap(pod: Pod, since: datetime, now: datetime) -> float:
    assert pod.bound is not None
    end = pod.ending.at if pod.ending and pod.over else now
    return max(0.0, (min(end, now) - max(pod.bound, since)).total_seconds())


def _holds(pod: Pod, now: datetime) -> bool:
    return pod.bound is not None and not pod.over and pod.bound <= now


def _released(pod: Pod, since: datetime) -> bool:
    """Whether the pod had released its accelerators by ``since``."""
    return bool(pod.over and pod.ending and pod.ending.at <= since)
