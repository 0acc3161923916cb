"""When a durable checkpoint is due."""

from __future__ import annotations

from elastrain.api.job import CheckpointSpec


def due(spec: CheckpointSpec, *, step: int, saved_step: int, now: float, saved_at: float) -> bool:
    """Whether to save after ``step`` committed steps. Pure.

    ``saved_step`` and ``saved_at`` (monotonic seconds, like ``now``) belong to the last attempt or, before any, to the
    start; a failed attempt counts, so that a full disk is tried again at the next interval and not at every step.
    """
    if step <= saved_step:
        return False
    by_steps = spec.every_steps is not None and step // spec.every_steps > saved_step // spec.every_steps
    by_time = spec.every_seconds is not None and now - saved_at >= spec.every_seconds
    return by_steps or by_time
