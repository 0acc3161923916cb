"""The operator's observations and decisions, as plain immutable values. No client, no framework, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Literal

from elastrain.api.records import Generation, GenerationMember, Member, Phase, Progress, Target, Termination
from elastrain_operator.allocation.snapshot import Amounts, Share
from elastrain_resource.job import ConditionType

WORKLOAD_NOTE = "kueue.x-k8s.io/workload"
"""Annotation of a pod: the Workload that it is charged to. Kueue reads it for topology-aware placement."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where pods of a Workload may run, and what they carry, by its admission."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod is charged to: a place in an admitted Workload."""

    workload: str
    placement: PodPlacement = PodPlacement()
    topology: bool = False


DEFAULT_GRACE = 30.0
"""Kubernetes' default of terminationGracePeriodSeconds."""
DRAIN_MARGIN = 5.0
"""Seconds between the agent's own drain limit and the kubelet's SIGKILL, for the termination record."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job ended."""

    condition: ConditionType
    """SUCCEEDED or FAILED."""
    reason: str
    message: str


Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition without its history."""

    type: ConditionType
    status: Truth
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job and a generation of its spec."""

    namespace: str
    name: str
    uid: str
    generation: int | None = None
    """``metadata.generation`` of the planned spec."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the container that decided the worker's end has ended: the trainer or an init container, else the pod."""

    at: datetime = field(compare=False)
    """When this operator first observed it."""
    record: Termination | None = None
    """Termination record of the agent; None: it wrote none (killed, evicted, no agent in the image)."""
    exit_code: int | None = None
    """None: unknown, since the pod ended without its container's status."""
    reason: str = ""
    """Kubernetes' reason: OOMKilled, StartError, Evicted, NodeLost, ..."""
    message: str = ""
    ran: float | None = None
    """Seconds that its container ran, by its node's clock; None: it never ran, or that is unknown."""
    container: str = ""
    """The init container that failed, so that the trainer never ran; empty: the trainer, or the pod as a whole."""
    added: bool = False
    """That container is not the template's: admission has added it."""
    refused: bool = False
    """Its kubelet has refused the pod: no container has run."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A worker's group and its place there, if a group has several workers."""

    group: int
    place: int


UNSCHEDULABLE = "Unschedulable"
"""The scheduler's reason for a pod for which it finds no node."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker does not start or train, from its pod's status or from etcd."""

    reason: str
    """Reason of the condition PodsReady: ImagePullFailed, Unschedulable, VolumeFailed, AgentNotHeard, ..."""
    message: str
    """Names the pod and quotes Kubernetes, with container and image."""
    patience: float = 0.0
    """Seconds after the pod was first observed before it is reported."""
    passes: bool = False
    """Its sandbox and volumes are there: its image is being pulled."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker pod. Built by ``observe.parse.pod`` only. Its times are this operator's observations: those inside a pod
    are times of other machines' clocks."""

    name: str
    uid: str
    ordinal: int
    seen: datetime = field(compare=False)
    """When this operator first observed it."""
    started: bool = False
    """The trainer container runs or has run."""
    ready: bool = False
    went_unready: bool = False
    """It was Ready and no longer is: its node does not answer, or a probe of the template fails."""
    node_silent: bool = False
    """Its node does not answer, by the node lifecycle controller."""
    terminating: bool = False
    deleted: datetime | None = field(default=None, compare=False)
    """When this operator first observed its deletion; None: it is not terminating."""
    finalizers: tuple[str, ...] = ()
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    ending: Ending | None = None
    over: bool = False
    """All its containers have ended: its resources are free."""
    processes_ended: bool = False
    """Proven: its kubelet has reported the end of the trainer container, never to start again (``containers.py``)."""
    disruption: str = ""
    """Reason of a true condition DisruptionTarget: PreemptionByScheduler, EvictionByEvictionAPI, ..."""
    trouble: Trouble | None = None
    node: str = ""
    """Name of its node; empty until it is scheduled."""
    template: str = ""
    """Version of its template (``rollout.version``); empty: unknown."""
    bound: datetime | None = None
    """When it was first observed on a node: from then on it holds its accelerators. None: not bound."""
    accelerators: int = 1
    """Accelerators that it holds; 1 if it requests none."""
    demand: Amounts = ()
    """Its resource requests."""
    resized: bool = False
    """They were changed in place: they say nothing of the next worker's."""
    priority: int = 0
    """As admission has set it."""
    evicting: bool = False
    """It is on no node, and the scheduler has evicted others for it."""
    workload: str = ""
    """Kueue's Workload that it is charged to; empty: none."""
    kept: bool | None = None
    """Whether its annotations keep autoscalers from removing its node; None: it has none."""
    slot: Slot | None = None
    """From its labels; None: it has no group."""
    etcd: str = ""
    """Endpoints of the etcd that its agent was given; empty: unknown."""


class Cause(StrEnum):
    """Field names of ``status.restarts``."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that ended or disappeared without having been asked to leave."""

    pod: Pod
    cause: Cause
    reason: str
    """One CamelCase word."""
    message: str
    """What happened, in one line."""
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The job's records in etcd at one revision."""

    target: Target | None = None
    members: tuple[Member, ...] = ()
    generation: Generation | None = None
    progress: Progress | None = None
    highest: int = 0
    """Greatest number of a generation that this operator has seen in any record, also in one that etcd has lost."""
    earlier: Callable[[int], tuple[GenerationMember, ...]] = field(default=lambda _: (), compare=False, repr=False)
    """Members of one of the last few generations, by its number; empty if it is unknown."""
    leases: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Leases that hold the members' keys, by the member's id."""
    _placed: frozenset[str] = field(init=False, compare=False, repr=False)
    _ready: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:  # once: a pass asks about each worker of a job of thousands
        placed = self.generation.members if self.generation is not None else ()
        object.__setattr__(self, "_placed", frozenset(m.worker for m in placed))
        object.__setattr__(self, "_ready", frozenset(m.worker for m in self.members if m.phase is Phase.READY))

    def member_of(self, worker: str) -> Member | None:
        """The live member of a worker (pod name)."""
        return next((m for m in self.members if m.worker == worker), None)

    def trains(self, worker: str) -> bool:
        """Whether the newest generation includes a worker (pod name)."""
        return worker in self._placed

    def is_ready(self, worker: str) -> bool:
        """Whether a member of a worker (pod name) could join at once. A torchrun in it has a record of its own."""
        return worker in self._ready


class RefusalKind(StrEnum):
    """Why a pod cannot be created."""

    TEMPLATE_INVALID = "TemplateInvalid"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    """By a webhook, a policy, or a plugin of the API server: Pod Security, a LimitRange, a namespace that ends."""
    NOT_PERMITTED = "forbidden"
    """RBAC does not allow the operator to create pods."""
    OTHER = "CreationRefused"
    CREDENTIALS = "credentials"
    NAME_TAKEN = "name taken"
    """Another object has the pod's name: the ordinal is used up."""
    WEBHOOK_FAILED = "WebhookFailed"
    """An admission webhook does not answer, or with an error."""
    BUSY = "ApiServerBusy"
    """Overload, rate limits, races, no answer in time."""
    ETCD_DENIED = "EtcdDenied"

    @property
    def reason(self) -> str:
        """Of the condition PodsReady; the message has the rest."""
        return self.OTHER.value if self in {self.NOT_PERMITTED, self.CREDENTIALS, self.NAME_TAKEN} else self.value

    @property
    def lasts(self) -> bool:
        """Whether the refusal is about this job, and ends only by a change of its template, its namespace or a policy.
        Otherwise the cause is elsewhere, and creation succeeds again without a change of the job."""
        return self not in _PASSING


_PASSING = {RefusalKind.NAME_TAKEN, RefusalKind.WEBHOOK_FAILED, RefusalKind.BUSY, RefusalKind.ETCD_DENIED}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last refusal to create a pod."""

    kind: RefusalKind
    message: str
    at: datetime
    attempts: int = 1
    """Refusals in a row."""
    generation: int | None = None
    """``metadata.generation`` of the spec that was refused: a changed spec is tried at once."""
    retry: float = 0.0
    """Seconds from ``at`` for which the API server asked for patience; 0: it named none."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why etcd, or the records of one job, are unknown."""

    reason: str = "EtcdUnavailable"
    """EtcdUnavailable, EtcdDenied, EtcdRefusesWrites or, for one job, RecordsUnreadable."""
    message: str = "not connected yet"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A job's PodDisruptionBudget: of these workers, evictions leave at least ``least``."""

    ordinals: tuple[int, ...] = ()
    """Empty: no budget."""
    least: int = 1


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """A job's set of workers, as last written (``pod/workerset.py``)."""

    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """The number of a job's set of workers, to be written."""

    number: int
    touched: Pod | None = None
    """A pod whose annotation changes too, since Kubernetes reads the set only when a pod changes; None: one does."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A job's gang, as written for its scheduler (``job/objects.py``)."""

    manifest: Mapping[str, Any] = field(default_factory=dict)
    """The object; empty: there is none."""
    written: bool = False
    """It exists, and new pods name it."""
    problem: str = ""
    """Why it could not be written; pods are then created without it."""
    retry: datetime | None = None
    """When it is tried again."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The pods and records of one job at one moment."""

    job: JobRef
    pods: tuple[Pod, ...] = ()
    """All pods of the job in the API server, ended ones included, by ordinal."""
    coordination: Coordination | None = None
    """None: unknown, since etcd cannot be reached. That is not the same as empty."""
    outage: Outage | None = None
    """Why ``coordination`` is None."""
    share: Share | None = None
    """The job's share from the allocator; None: this operator does not share the cluster out."""
    created: datetime | None = None
    """When the job was created, for its place in the queue; None: unknown."""
    charges: tuple[Charge, ...] | None = None
    """A place for each pod that Kueue lets the job create now; None: Kueue does not decide its size."""
    ignored_queue: str = ""
    """The LocalQueue that the job names although this operator runs without Kueue; empty: none."""
    unissued: tuple[Pod, ...] = ()
    """Pods that the job controls and whose ordinals it has never given out: they count as holders of resources only."""
    etcd: str = ""
    """Endpoints of this operator's etcd, as workers get them."""


class Still(Enum):
    """What a pod must still be when it is deleted.

    A watch may show a pod as it was seconds ago: it is late, or the pod has lost its label and is only read now and
    then.
    """

    THERE = "it exists"
    NOT_READY = "it is not Ready: its node may have come back"
    NOT_STARTED = "its trainer has not started"


@dataclass(frozen=True, slots=True)
class Deletion:
    """A pod to delete, and why."""

    pod: str
    uid: str
    """Only the pod with this UID is deleted."""
    why: str
    """For the log."""
    still: Still = Still.THERE


@dataclass(frozen=True, slots=True)
class EndedMember:
    """A member of a worker whose processes have ended."""

    id: str
    lease: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Annotations of a worker, for autoscalers."""

    pod: str
    uid: str
    keep: bool
    """Its node must not be removed."""


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
