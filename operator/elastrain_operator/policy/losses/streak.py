"""Consecutive losses that are not the script's fault: counted, and when the job fails.

Losses without a committed step in between are counted. A job that runs for weeks on spot machines may lose thousands
of workers and be healthy; a job that loses twenty times its size without progress is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from elastrain.api.job import ConditionType, JobSpec, LossStreak
from elastrain_operator.facts import Cause, Loss, Verdict

STALE = timedelta(hours=1)
"""After this time without a loss a new streak begins: for jobs whose steps are unknown, such as stock torchrun's."""


def update(before: LossStreak | None, fresh: Sequence[Loss], step: int | None, now: datetime) -> LossStreak | None:
    """The streak after ``fresh`` losses; None: no streak. ``step``: committed steps as last reported."""
    lost = {c: sum(x.cause is c for x in fresh) for c in (Cause.INFRASTRUCTURE, Cause.PREEMPTION)}
    if before and (_progressed(before.step, step) or now - datetime.fromisoformat(before.time) >= STALE):
        before = None
    if not any(lost.values()):
        return before
    last = [x for x in fresh if x.cause is not Cause.USER][-1]
    return LossStreak(
        infrastructure=(before.infrastructure if before else 0) + lost[Cause.INFRASTRUCTURE],
        preemption=(before.preemption if before else 0) + lost[Cause.PREEMPTION],
        step=step,
        time=now.isoformat(),
        message=f"{last.reason}: {last.message}",
    )


def verdict(spec: JobSpec, streak: LossStreak | None) -> Verdict | None:
    """The job has failed if a streak exceeds its limit times ``maxReplicas``."""
    if streak is None:
        return None
    for field, count, limit in (
        ("infrastructureLimit", streak.infrastructure, spec.infrastructure_limit),
        ("preemptionLimit", streak.preemption, spec.preemption_limit),
    ):
        most = limit * spec.max_replicas * spec.group_size
        if count > most:
            groups = f" of {spec.group_size} workers each" if spec.group_size > 1 else ""
            text = (
                f"{count} workers in a row were lost without a committed step, {field} ({limit}) times maxReplicas "
                f"({spec.max_replicas}{groups}) is {most}; last: {streak.message}"
            )
            return Verdict(ConditionType.FAILED, f"{field[0].upper()}{field[1:]}Exceeded", text)
    return None


def _progressed(before: int | None, now: int | None) -> bool:
    return now is not None and (before is None or now > before)
