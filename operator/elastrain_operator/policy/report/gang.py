"""Whether the scheduler knows a job's gang: the condition GangScheduled. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api.job import ConditionType
from elastrain.api.names import headcount
from elastrain_operator.model import Group
from elastrain_operator.policy.report.conditions import Claim


def claim(group: Group | None, minimum: int, was_reported: bool) -> Iterable[Claim]:
    """``minimum``: the job's ``minReplicas``. ``was_reported``: the job has the condition."""
    kind = ConditionType.GANG_SCHEDULED
    if group is None:
        return
    if group.problem:
        text = f"{group.problem}: workers are bound one by one"
        yield Claim(kind, "False", "GangSchedulerMissing", text)
    elif group.written:
        name = f"{group.manifest['kind']} {group.manifest['metadata']['name']}"
        yield Claim(kind, "True", "Grouped", f"{name}: {headcount(minimum)} are bound together or none (minReplicas)")
    elif was_reported:
        yield Claim(kind, "Unknown", "NoGang", "the job wants no workers, or its template names another scheduler")
