"""Builders of plain values for the operator's tests, as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from elastrain.api import names
from elastrain.api.records import Termination
from elastrain_operator.facts import JobRef
from elastrain_operator.job import loop as loop_module
from elastrain_operator.pod import manifest
from elastrain_resource.job import JobSpec
from raw_cluster import TEMPLATE, wire_time

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    """``make_spec(maxReplicas=4, ...)``: a valid spec, fields in wire names."""
    return lambda **fields: JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


@pytest.fixture
def quick_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops with minimal waits."""
    monkeypatch.setattr(loop_module, "COALESCE", 0.001)
    monkeypatch.setattr(loop_module, "PACE", 0.01)
    monkeypatch.setattr(loop_module, "ROUTINE", 0.02)
    monkeypatch.setattr(loop_module, "RETRY_DELAYS", (0.02,))


@pytest.fixture
def pod_body() -> Callable[..., dict[str, Any]]:
    """``pod_body(ordinal, state={...}, ...)``: a worker pod in the API server's form."""

    def build(
        ordinal: int = 0,
        *,
        phase: str = "Pending",
        state: dict[str, Any] | None = None,
        conditions: list[dict[str, Any]] | None = None,
        status: dict[str, Any] | None = None,
        **meta: Any,
    ) -> dict[str, Any]:
        containers = [{"name": "trainer", "image": "trainer:1", "state": state}] if state else []
        return {
            "metadata": {
                "name": f"job-{ordinal}",
                "namespace": "default",
                "uid": f"uid-{ordinal}",
                "creationTimestamp": wire_time(NOW),
                "labels": {names.LABEL_ORDINAL: str(ordinal), names.LABEL_JOB_UID: "job-uid"},
                "ownerReferences": [manifest.owner(JobRef("default", "job", "job-uid"))],
                **meta,
            },
            "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}], "terminationGracePeriodSeconds": 30},
            "status": {
                "phase": phase,
                "containerStatuses": containers,
                "conditions": conditions or [],
                **(status or {}),
            },
        }

    return build


@pytest.fixture
def terminated() -> Callable[..., dict[str, Any]]:
    """``terminated(exit_code, record=..., reason=...)``: state of a container that has ended a second ago."""

    def build(exit_code: int, record: Termination | None = None, **fields: Any) -> dict[str, Any]:
        message = {"message": record.encode().decode()} if record else {}
        times = {"startedAt": wire_time(NOW), "finishedAt": wire_time(NOW + timedelta(seconds=90))}
        return {"terminated": {"exitCode": exit_code, **times, **message, **fields}}

    return build
