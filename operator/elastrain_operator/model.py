"""What the operator sees and what it decides, as plain immutable values. No client, no framework, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from elastrain.api.job import AcceleratorSeconds, JobStatus
from elastrain.api.records import Generation, GenerationMember, Member, Progress, Target, Termination
from elastrain_operator.allocation.model import Amounts, Claims, Share


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which job, and which of its spec's generations."""

    namespace: str
    name: str
    uid: str
    generation: int | None = None
    """``metadata.generation`` of the spec that is planned for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the trainer container (or, where it never ran, the pod) ended."""

    at: datetime
    record: Termination | None = None
    """Termination record of the agent; None if the agent wrote none (killed, evicted, no agent in the image)."""
    exit_code: int | None = None
    """None if no exit code is known: the pod ended without its container's status."""
    reason: str = ""
    """Kubernetes' word: OOMKilled, StartError, Evicted, NodeLost, ..."""
    message: str = ""


UNSCHEDULABLE = "Unschedulable"
"""The scheduler's word for a pod for which it has no node."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker does not start or does not train, as Kubernetes says it or etcd shows."""

    reason: str
    """Reason of the condition PodsReady: ImagePullFailed, Unschedulable, VolumeFailed, AgentNotHeard, ..."""
    message: str
    """Names the pod, and quotes Kubernetes with container and image."""
    patience: float = 0.0
    """Seconds after the pod's creation from which on it is worth telling."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker pod. Built by ``observe.pod`` only."""

    name: str
    uid: str
    ordinal: int
    created: datetime
    started: bool = False
    """The trainer container runs or has run."""
    ready: bool = False
    went_unready: bool = False
    """It was Ready once and is not any more: its node does not answer, or a probe of the template fails."""
    terminating: bool = False
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    ending: Ending | None = None
    over: bool = False
    """All its containers have ended: what it used is free."""
    disruption: str = ""
    """Reason of a true condition DisruptionTarget: PreemptionByScheduler, EvictionByEvictionAPI, ..."""
    trouble: Trouble | None = None
    node: str = ""
    """Name of its node; empty until it is scheduled."""
    template: str = ""
    """Version of the template that it was made from (``rollout.version``); empty: unknown."""
    bound: datetime | None = None
    """When it was bound to a node: from then on it holds its accelerators. None: it is not, as far as is known."""
    accelerators: int = 1
    """Accelerators that it holds; 1 where it asks for none."""
    demand: Amounts = ()
    """What it requests of its node."""


class Cause(StrEnum):
    """Field names of ``status.restarts``."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that is gone without having been asked to go."""

    pod: Pod
    cause: Cause
    reason: str
    """One CamelCase word."""
    message: str
    """What happened, in one line."""
    log_tail: str = ""


def _unknown(_number: int) -> tuple[GenerationMember, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Coordination:
    """The job's records in etcd at one revision."""

    target: Target | None = None
    members: tuple[Member, ...] = ()
    generation: Generation | None = None
    progress: Progress | None = None
    earlier: Callable[[int], tuple[GenerationMember, ...]] = field(default=_unknown, compare=False, repr=False)
    """Members of one of the last few generations, by its number; none if it is not known."""

    def member_of(self, worker: str) -> Member | None:
        """The live member of a worker (pod name)."""
        return next((m for m in self.members if m.worker == worker), None)

    def trains(self, worker: str) -> bool:
        """Whether the newest generation includes a worker (pod name)."""
        return self.generation is not None and any(m.worker == worker for m in self.generation.members)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's last refusal to create a pod."""

    reason: str
    """Reason of the condition PodsReady: TemplateInvalid, QuotaExceeded, NameTaken, CredentialsRefused, EtcdDenied."""
    message: str
    at: datetime
    attempts: int = 1
    """Refusals in a row."""
    generation: int | None = None
    """``metadata.generation`` of the spec that was refused: a changed spec is tried at once."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why etcd is not known."""

    reason: str = "EtcdUnavailable"
    """EtcdUnavailable or EtcdDenied."""
    message: str = "not connected yet"


@dataclass(frozen=True, slots=True)
class Observed:
    """The pods and records of one job at one moment."""

    job: JobRef
    pods: tuple[Pod, ...] = ()
    """All pods of the job that the API server has, ended ones included, by ordinal."""
    coordination: Coordination | None = None
    """None: not known, since etcd cannot be reached. That is not the same as empty."""
    outage: Outage | None = None
    """Why ``coordination`` is None."""
    share: Share | None = None
    """What the allocator gives the job; None: this operator does not share the cluster out."""
    created: datetime | None = None
    """When the job was created, for its place in the queue; None: not known."""


@dataclass(slots=True)
class LoopState:
    """What one job's loop remembers between passes. Plans read it; the loop and the executor write it. All of it can be
    lost: the next operator sees the same world, and at worst waits a little longer."""

    status: JobStatus | None = None
    """As last written by this operator; None: the one on the object counts."""
    status_written: datetime | None = None
    """When this operator last wrote the status; None: not yet."""
    status_interval: float = 5.0
    """Seconds between two writes of a status that contains nothing urgent: the more jobs, the longer."""
    version: str | None = None
    """``resourceVersion`` of the job as last seen or written: a status is written only over this version."""
    unborn: tuple[int, ...] = ()
    """Ordinals of pods that the API server refused; used first."""
    refusal: Refusal | None = None
    created: dict[str, tuple[Pod, datetime]] = field(default_factory=dict)
    """Pods by UID that were created, and when, but that the watch has not shown yet."""
    usage: AcceleratorSeconds | None = None
    """Accelerator usage as of the last pass; None: the one in the status counts."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A pod to delete, and why."""

    pod: str
    uid: str
    """Only the pod with this UID is deleted."""
    why: str
    """For the log."""


class Severity(StrEnum):
    """Types of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event to be recorded on the job."""

    reason: str
    message: str
    severity: Severity = Severity.NORMAL


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. ``apply.py`` does it in this order: status, target, create, delete, delete_job, events."""

    status: JobStatus | None = None
    """To be written; None: it is as it should be (or the change is too small to be written yet)."""
    target: Target | None = None
    """To be written to etcd; None: it is as it should be, or etcd is not known."""
    create: tuple[int, ...] = ()
    """Ordinals of the pods to create."""
    stand_by: tuple[int, ...] = ()
    """Those of them that will be spares: they prefer nodes on which no worker of the job is."""
    delete: tuple[Deletion, ...] = ()
    delete_job: bool = False
    events: tuple[JobEvent, ...] = ()
    keep_off: tuple[str, ...] = ()
    """Nodes (names) on which the pods to create are not to run."""
    requeue_after: float | None = None
    """Seconds until something is due by the clock alone; None: nothing is."""
    usage: AcceleratorSeconds | None = None
    """Accelerator usage up to now, for the next pass; None: it was not computed."""
    claims: Claims | None = None
    """For the allocator; None: there is none."""
