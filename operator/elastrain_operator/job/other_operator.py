"""Whether a job is another operator's, from pass to pass (:mod:`elastrain_operator.policy.elsewhere` decides it)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog

from elastrain_operator.facts import Observed
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.policy import elsewhere
from elastrain_operator.raw import mapping, text

log = structlog.get_logger(__name__)


def plan(body: Mapping[str, Any], observed: Observed, state: LoopState, now: datetime) -> Plan | None:
    """The plan for a job that another operator manages; None: the job is this operator's, or is taken over.

    An event, once, and nothing else; the other one writes the status."""
    own, job = observed.etcd, observed.job
    claimed, version = _claimed(body, state), state.version or ""
    state.claim = claim = elsewhere.followed(state.claim, observed, claimed, version, now)
    others = elsewhere.foreign_workers(observed)
    if not others and (claim is None or now >= claim.due):
        state.elsewhere = ""
        return None
    state.status = state.status_written = None  # what the other one writes counts
    due = (claim.due - now).total_seconds() if claim is not None and not others else None
    event = elsewhere.report(others, claim, own)
    if event.message == state.elsewhere:
        return Plan(requeue_after=due)
    state.elsewhere = event.message
    log.warning("job left alone", job=job.name, namespace=job.namespace, why=event.message)
    return Plan(events=(event,), requeue_after=due)


def _claimed(body: Mapping[str, Any], state: LoopState) -> str:
    """``status.etcd``: as this operator has written it, unless the object is newer."""
    if state.status is not None and state.version != body["metadata"].get("resourceVersion"):
        return state.status.etcd
    return text(mapping(body.get("status")).get("etcd"))
