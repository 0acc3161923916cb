"""What a job's loop keeps between passes, and what a pass has decided to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastrain.api.records import Target
from elastrain_operator.allocation.snapshot import Claims
from elastrain_operator.facts import (
    Charge,
    Deletion,
    DisruptionBudget,
    EndedMember,
    Gang,
    JobEvent,
    Mark,
    Pod,
    Refusal,
    Slot,
    WorkerCount,
    WorkerSet,
)
from elastrain_operator.pod.admitted import Admitted
from elastrain_operator.policy.elsewhere import Claim
from elastrain_operator.policy.report.accelerator_seconds import Usage
from elastrain_resource.job import JobStatus

BUDGET, MARKS, GANG, SET = "disruption budget", "annotations of workers", "gang", "set of workers"
"""What stands beside a job's pods."""


@dataclass(slots=True)
class LoopState:
    """State of one job's loop between passes. Plans read it; the loop and the executor write it. Losing it is safe: the
    next operator makes the same observations and at worst waits a little longer."""

    status: JobStatus | None = None
    """As last written by this operator; None: the status of the object counts."""
    status_written: datetime | None = None
    """When this operator last wrote the status; None: never."""
    status_interval: float = 5.0
    """Seconds between two non-urgent writes of the status: longer with more jobs."""
    short_status: Mapping[str, Any] = field(default_factory=dict)
    """What was written in the place of a status that the API server refuses; empty: it refuses none."""
    elsewhere: str = ""
    """Why the job is left to another operator, as last reported; empty: it is not."""
    claim: Claim | None = None
    """Another operator's claim to the job; None: there is none."""
    unwritten: dict[str, str] = field(default_factory=dict)
    """Why objects beside the pods could not be written, by :data:`BUDGET`, :data:`MARKS`, :data:`GANG`
    or :data:`SET`."""
    version: str | None = None
    """``resourceVersion`` of the job as last seen or written: a status replaces only this version."""
    open_ordinals: tuple[int, ...] = ()
    """Ordinals that were planned and whose pods do not exist: not created yet, or refused. They are used first."""
    refusal: Refusal | None = None
    admitted: Admitted | None = None
    """The last pod that the API server has admitted in a dry run; None: none."""
    unreadable: str = ""
    """Why the status could not be read, as last reported by an event; empty: it was not."""
    silent_agents: Mapping[str, datetime] = field(default_factory=dict)
    """Pods (UIDs) that run without training or answering, and since when."""
    retries: dict[str, datetime] = field(default_factory=dict)
    """When failed writes beside the pods are repeated, by their names (``objects.py``)."""
    created: dict[str, tuple[Pod, datetime]] = field(default_factory=dict)
    """Created pods that the watch has not shown yet, by UID, with the time of their creation or last read."""
    alive: set[str] = field(default_factory=set)
    """UIDs of existing pods that this operator has known without a deletion, and has not deleted itself."""
    disappeared: dict[str, Pod] = field(default_factory=dict)
    """Pods that have disappeared since the last status, as last known, by UID: their loss is not counted yet."""
    node_losses: tuple[tuple[str, datetime], ...] = ()
    """Recent losses: node and time."""
    usage: Usage | None = None
    """Accelerator usage as of the last pass; None: the one in the status counts."""
    budget: DisruptionBudget | None = None
    """As last written; None: unknown."""
    gang: Gang | None = None
    """The job's gang; None: unknown, or gangs are not written."""
    workers: WorkerSet | None = None
    """The job's set of workers; None: unknown, or it could not be written."""
    unanswered_since: datetime | None = None
    """Since when the allocator owes an answer for the present spec; None: it owes none."""
    lost_since: datetime | None = None
    """Since when etcd lacks records that it has had (``policy/losses/data_loss.py``); None: it lacks none."""

    def remember(self, plan: Plan) -> Usage | None:
        """Keep what the next pass needs; returns the accelerator usage before."""
        before, self.usage = self.usage, plan.usage or self.usage
        self.silent_agents = plan.silent_agents
        self.node_losses = self.node_losses if plan.node_losses is None else plan.node_losses
        return before


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. :meth:`elastrain_operator.job.executor.Executor.execute` states the order."""

    status: JobStatus | None = None
    """To be written; None: unchanged, or not urgent."""
    ended: tuple[EndedMember, ...] = ()
    """Members whose processes have ended: their leases end first of all, since survivors wait for it."""
    target: Target | None = None
    """To be written to etcd; None: unchanged, or etcd is unknown."""
    create: tuple[int, ...] = ()
    """Ordinals of the pods to create."""
    slots: tuple[Slot, ...] = ()
    """Their groups and places, in their order; empty: each worker is a group by itself."""
    charges: tuple[Charge, ...] = ()
    """Kueue's places of these pods, in their order; empty: the job is not under Kueue."""
    probe: int | None = None
    """Ordinal of a pod that the API server is asked to admit in a dry run; None: there is nothing to ask."""
    stand_by: tuple[int, ...] = ()
    """Those of them that will be spares: they prefer nodes without a worker of the job."""
    delete: tuple[Deletion, ...] = ()
    delete_job: bool = False
    events: tuple[JobEvent, ...] = ()
    keep_off: tuple[str, ...] = ()
    """Nodes (names) that the created pods avoid."""
    requeue_after: float | None = None
    """Seconds until the next deadline; None: none."""
    usage: Usage | None = None
    """Accelerator usage up to now, for the next pass; None: it was not computed."""
    claims: Claims | None = None
    """For the allocator; None: there is none."""
    marks: tuple[Mark, ...] = ()
    """Workers whose annotations have to change."""
    silent_agents: Mapping[str, datetime] = field(default_factory=dict)
    """For the next pass, as in :class:`LoopState`."""
    node_losses: tuple[tuple[str, datetime], ...] | None = None
    """The same; None: unchanged."""
    budget: DisruptionBudget | None = None
    """To be written; None: unchanged, or unknown."""
    workers: WorkerCount | None = None
    """The set of workers, to be written; None: unchanged, or there is none."""
    gang: bool | None = None
    """Whether the scheduler is to know the job's gang; None: unchanged."""
    departed: tuple[str, ...] = ()
    """UIDs of disappeared pods (:attr:`LoopState.disappeared`) that ``status`` takes in."""
