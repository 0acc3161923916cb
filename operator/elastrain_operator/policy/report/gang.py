"""Whether the scheduler knows a job's gang: the condition GangScheduled. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api.job import ConditionType
from elastrain.api.names import headcount
from elastrain_operator.facts import ConditionUpdate, Gang


def claim(gang: Gang | None, minimum: int, was_reported: bool) -> Iterable[ConditionUpdate]:
    """``minimum``: the job's ``minReplicas``. ``was_reported``: the job has the condition."""
    kind = ConditionType.GANG_SCHEDULED
    if gang is None:
        return
    if gang.problem:
        text = f"{gang.problem}: workers are bound one by one"
        yield ConditionUpdate(kind, "False", "GangSchedulerMissing", text)
    elif gang.written:
        name = f"{gang.manifest['kind']} {gang.manifest['metadata']['name']}"
        yield ConditionUpdate(
            kind, "True", "Grouped", f"{name}: {headcount(minimum)} are bound together or none (minReplicas)"
        )
    elif was_reported:
        yield ConditionUpdate(
            kind, "Unknown", "NoGang", "the job wants no workers, or its template names another scheduler"
        )
