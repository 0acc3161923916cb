"""A job whose status cannot be read: one condition says so, and the rest of the status stays as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from elastrain.api.job import ConditionType

REASON = "StatusUnreadable"


def message(job: str, cause: str) -> str:
    """The report of the ``cause`` for users."""
    return (
        f"{cause}. The status is damaged, or of a newer operator. This operator leaves the job alone: workers continue "
        "to train, none is created, drained or deleted. Upgrade the operator, or correct the field with "
        f"`kubectl edit etj {job} --subresource=status`"
    )


def patch(status: Any, text: str, generation: int | None, now: datetime) -> dict[str, Any] | None:
    """A merge patch that adds the report to the conditions of a raw ``status``; None: it is there already, or the
    conditions cannot be read either."""
    found = (status.get("conditions") or []) if isinstance(status, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(c, Mapping) for c in found):
        return None
    kind = ConditionType.PODS_READY.value
    before: Mapping[str, Any] = next((c for c in found if c.get("type") == kind), {})
    if (before.get("status"), before.get("reason"), before.get("message")) == ("Unknown", REASON, text):
        return None
    same = before.get("status") == "Unknown" and before.get("lastTransitionTime")
    report = {
        "type": kind,
        "status": "Unknown",
        "reason": REASON,
        "message": text,
        "lastTransitionTime": same or now.isoformat(),
        **({} if generation is None else {"observedGeneration": generation}),
    }
    return {"conditions": [report, *(c for c in found if c.get("type") != kind)]}
