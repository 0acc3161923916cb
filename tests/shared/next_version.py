"""The operator of a next version, as a program: ``python next_version.py FLAGS``. It writes fields, words and
conditions that the present version does not know."""

from __future__ import annotations

import json
from typing import Any

import impatient_operator
from elastrain.api.records import Target
from elastrain_operator.job import statuses
from elastrain_resource.job import JobStatus

_patch, _encode = statuses.status_patch, Target.encode
MARK = "writtenByTheNextVersion"
ARCHIVED = {
    "type": "Archived",
    "status": "Deferred",
    "reason": "NotYet",
    "message": "",
    "lastTransitionTime": "2030-01-01T00:00:00Z",
}


def newer_status(status: JobStatus) -> dict[str, Any]:
    """The patch of the status, with a new field in each part, a new condition, and new words."""
    found = {name: {**v, MARK: 1} if isinstance(v, dict) else v for name, v in _patch(status).items()}
    conditions = [{**c, MARK: 1} for c in found["conditions"] if c["type"] != ARCHIVED["type"]]
    found |= {MARK: {"deep": [1]}, "conditions": [*conditions, ARCHIVED]}
    return found


def newer_target(target: Target) -> bytes:
    """The record with a field more."""
    return json.dumps({**json.loads(_encode(target)), MARK: 1}).encode()


if __name__ == "__main__":
    statuses.status_patch = newer_status
    Target.encode = newer_target  # type: ignore[method-assign]
    impatient_operator.main()
