"""The allocator's input and output, as plain immutable values. No client, no framework, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType

from elastrain_resource.sizing.speedup import Batches, Measured

Amounts = tuple[tuple[str, int], ...]
"""Resource → integer amount, sorted by name: ``(("cpu", 500), ("nvidia.com/gpu", 4), ("pods", 1))``. CPU is in
millicores, memory in bytes, everything else in pieces."""

PODS = "pods"
"""Kubernetes' resource name for a node's number of pods: each worker uses one."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """One of a pod's tolerations, in Kubernetes' terms; an empty string is an absent field."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    bounded: bool = False
    """It has ``tolerationSeconds``: a NoExecute taint ends the pod after them."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a required node affinity: In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False
    """``key`` names a field of the node instead of a label: ``metadata.name`` is the only one."""


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes a pod may be bound to. Equal for jobs with equal constraints."""

    selector: tuple[tuple[str, str], ...] = ()
    """Labels that a node must have: ``nodeSelector``."""
    terms: tuple[tuple[Requirement, ...], ...] = ()
    """Required node affinity: one of the terms must hold; an empty term never does. No terms: nothing is required."""
    tolerations: tuple[Toleration, ...] = ()
    avoid: tuple[str, ...] = ()
    """Nodes (names) that the operator's exclusions close to new workers for a while."""


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """What one worker requires of a node. Equal for jobs with equal templates."""

    demand: Amounts
    place: NodeRules = NodeRules()


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, as Kubernetes defines it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"
    passing: bool = False
    """It is too new to move workers; it keeps new ones away."""

    def as_passing(self) -> Taint:
        return replace(self, passing=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its capacity for workers."""

    name: str
    room: Mapping[str, int]
    """Allocatable minus the requests of all pods that are not workers; negative if the node is overcommitted."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    cordon_passing: bool = False
    """The cordon is too new to move workers."""
    going: bool = False
    """Its removal is announced by a known taint, condition or label, or it is being deleted."""
    sick: bool = False
    """A known condition says that training there will end."""
    sick_passing: bool = False
    """The condition is too new to move workers; it keeps new ones away."""
    closed_by: str = ""
    """What closes it to all workers, for people; taints are not in it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker pod that counts: neither ended nor leaving."""

    name: str
    node: str = ""
    """Name of its node; empty: not bound yet."""
    demand: Amounts = ()
    """What it holds there; the template may have changed since its creation."""
    trains: bool = False
    """It is in the newest generation."""
    spare: bool = False
    """A warm spare: any other worker may take its room."""
    group: str = ""
    """Its group, if the job's replicas have several workers."""
    uid: str = ""
    """Of its pod."""
    stuck: bool = False
    """It is on a node and cannot start there: its image, a volume, its sandbox, its configuration."""
    ends: str = ""
    """Why it should leave although its node stays, for people: a device that it holds fails. Empty: it should not."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a leaving pod still holds."""

    node: str
    demand: Amounts
    priority: int = 0
    """As admission has set it."""
    due: datetime | None = None
    """When the pod has to have ended at the latest: from then on its room is nobody's promise. None: unknown."""
    what: str = ""
    """The pod, for people, if ``due`` is set."""


def overdue_words(pods: Iterable[str]) -> str:
    """Pods that should be gone, at the end of a message; empty: there are none."""
    first, *more = [*pods] or [""]
    return f"; overdue: {first}{f' and {len(more)} more' if more else ''}" if first else ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that needs workers."""

    uid: str
    namespace: str
    name: str
    min: int
    cap: int
    """Most workers: ``replicas``, or ``maxReplicas`` if that is absent."""
    kind: WorkerShape
    elastic: bool = True
    """``replicas`` is absent: workers above ``min`` are shared fairly, and a change has to pay."""
    priority: int = 0
    evicts: bool = False
    """The scheduler would evict workers of another job for a Pending pod of it: its priority class preempts, and a
    worker of lower priority exists. It gets no pod without a free place."""
    created: float = 0.0
    """Seconds since the epoch: order of the queue."""
    workers: tuple[Worker, ...] = ()
    """Workers that stay longest come first (``policy/size/leavers.py``)."""
    size: int = 0
    """Desired workers of the last decision; 0: not admitted."""
    trains: bool = False
    """A generation is in force: its workers hold state and are kept even if fewer than ``min`` remain."""
    resized: datetime | None = None
    """When this operator last changed its size; None: never."""
    pause: float | None = None
    """Measured seconds of its last rescale; None: it never had one."""
    rescales: int = 0
    """Generations after its first one: each cost it a pause."""
    samples: float | None = None
    """Samples of a step, for messages; None: unknown."""
    measured: tuple[Measured, ...] = ()
    """Times of its steps at different sizes and placements; empty: unknown."""
    batches: Batches | None = None
    """The batches among which it chooses by itself; None: its batch is fixed."""
    remaining: float | None = None
    """Seconds of training left at the current speed, by the trainer's count; None: unknown."""
    nproc: int = 1
    """Ranks per worker, for messages."""
    group_size: int = 1
    """Workers of a replica: ``min``, ``cap`` and every size above ``min`` are multiples of it."""
    spares: int = 0
    """Desired warm spares beside its workers."""
    generation: int | None = None
    """``metadata.generation`` of its spec."""
    admitted: bool = True
    """The API server has admitted a pod of its template. Until then it may take free room only, and its priority class
    does not count: a job whose pods are refused costs no other job a worker."""
    refused: datetime | None = None
    """When the API server last refused one of its pods, after an earlier refusal; None: it did not."""
    hindered: bool = False
    """The scheduler has found no node for one of its pods."""
    evicting: bool = False
    """The scheduler has evicted others for one of its pods: the books were wrong, and the grant ends at once."""
    paced: bool = False
    """After losses, its next worker is created later."""
    usable: int | None = None
    """Most workers that it may hold, since an earlier grant did not become bound pods; None: no bound."""
    unused: str = ""
    """The same for people: what became of that grant, or why its pods are refused."""
    obstacle: str = ""
    """Reason of the refusal that holds its grants back, one CamelCase word: ``QuotaExceeded``; empty: none does."""
    charge: Amounts = ()
    """What ResourceQuotas count of one of its pods, by the names of their resources; empty: unknown."""
    quotas: tuple[str, ...] = ()
    """ResourceQuotas (``namespace/name``) that bound its pods."""
    quota_room: int | None = None
    """Most workers, those that exist included, that these quotas admit now; None: unknown, or no bound."""
    barred: str = ""
    """Why no worker of another job leaves for it again, for people: the scheduler has refused its pods for what the
    allocator does not know, and nothing of that has changed. Empty: workers may leave."""
    unknown: tuple[str, ...] = ()
    """Constraints of its template that the allocator does not know, for messages."""
    altered: tuple[str, ...] = ()
    """What admission has changed of what a worker needs, by field, for messages."""

    @property
    def may_wait(self) -> bool:
        """It may keep workers Pending, so that an autoscaler adds nodes."""
        return self.admitted and not self.evicts


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a job's worker is not created or not bound."""

    reason: str
    """One CamelCase word: ``QuotaExceeded``, ``Unschedulable``."""
    message: str
    """In the words of the API server or the scheduler."""
    refused: bool = False
    """The API server refuses the pod: its quotas and policies decide, not the room on nodes."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class PodCharge:
    """What ResourceQuotas count of a pod, and which of them apply to it."""

    amounts: Amounts = ()
    scopes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """A ResourceQuota of Kubernetes: the API server refuses each pod beyond it."""

    key: str
    """``namespace/name``."""
    hard: Amounts
    left: Amounts
    """Of the same resources, as the quota names them; all pods of the namespace that exist are counted."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What one job contributes to a snapshot."""

    job: Job | None
    """None: it needs no workers (suspended, ended, finishing) and only holds resources."""
    priority_class: str = ""
    """Name of the priority class; the cluster defines its value."""
    leaving: tuple[Held, ...] = ()
    obstacle: Obstacle | None = None
    """Why a worker is not bound; None: no reason is known."""
    charge: PodCharge = PodCharge()
    priority: int | None = None
    """As admission has set it; None: by ``priority_class``."""

    def differs(self, other: Claims | None) -> bool:
        """Whether the difference requires a new allocation; mere progress does not."""
        return other is None or (self != other and self._essence() != other._essence())

    def _essence(self) -> Claims:
        job = self.job
        if job is not None:
            known = job.batches and replace(job.batches, noise=job.batches.noise and 1.0)
            job = replace(job, remaining=None, samples=None, batches=known)
        return replace(self, job=job, obstacle=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment."""

    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    leaving: tuple[Held, ...] = ()
    """What leaving workers still hold: of jobs that shrink, have ended or were suspended."""
    reserved: tuple[tuple[WorkerShape, int], ...] = ()
    """Pods that Kueue has admitted and that are not bound yet, by kind: their room is not shared out."""
    quotas: tuple[QuotaRoom, ...] = ()
    """ResourceQuotas that bound the jobs' pods."""


class Sharing(StrEnum):
    """What decides on the sizes of elastic jobs of one priority, above their minima."""

    EQUAL = "equal"
    """Fair shares (``fair.py``)."""
    BALANCED = "balanced"
    """Marginal speed-up, close to the speeds that equal shares give (``goals.py``)."""
    EFFICIENT = "efficient"
    """Marginal speed-up."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the cluster is shared out; set by the administrator."""

    quotas: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    """Namespace → resource → most that its workers may hold. Absent: unlimited."""
    weights: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Namespace → weight for the capacity above the minima, at least 1. Absent: 1."""
    hysteresis: float = 60.0
    """Seconds after a resize during which a job is not resized for a mere improvement."""
    horizon: float = 600.0
    """Seconds over which a gain is counted; its actual duration is unknown."""
    pause: float = 5.0
    """Assumed seconds of a rescale for a job that has not measured one yet."""
    startup: float = 20.0
    """Seconds during which a new worker holds accelerators but does not train yet."""
    sharing: Sharing = Sharing.EQUAL
    pending: int = 0
    """Workers beyond the room that a job which could grow keeps Pending, so that an autoscaler adds nodes; a job that
    waits for its minimum keeps all missing ones Pending. 0: none."""


@dataclass(frozen=True, slots=True)
class Share:
    """One job's part of the cluster."""

    size: int | None
    """Desired workers; None: unknown, the job keeps its size."""
    reason: str
    """Why it is not more, one CamelCase word: the reason of the condition ``Grown``."""
    message: str
    """The same with numbers, for people."""
    release: frozenset[str] = frozenset()
    """Workers (pod names) that leave first, because another job needs their node."""
    replace: frozenset[str] = frozenset()
    """Workers on departing nodes for which other nodes have room: they are replaced without a shrink."""
    shaky: frozenset[str] = frozenset()
    """Workers on nodes that are departing, closed to new pods or not ready: the first to leave."""
    blind: bool = False
    """``size`` is None because of a missing permission, not of missing data: a new job need not wait."""
    is_answer: bool = True
    """False: this operator has not looked at the cluster yet. What its predecessor has reported stays."""
    generation: int | None = None
    """``metadata.generation`` of the spec that it answers; None: of any."""
    spares: int = 0
    """Warm spares, in room that no worker needs."""
    pending: int = 0
    """Workers beyond ``size`` that wait, Pending, for nodes that an autoscaler may add."""
    awaiting: int = 0
    """Workers within ``size`` that wait for such nodes: the rest of a minimum."""
    keeps_template: bool = False
    """No worker is replaced by one of a changed template, which has no place."""
    kept: frozenset[str] = frozenset()
    """Workers (pod names) on nodes that stay, if ``places`` is set."""
    places: int | None = None
    """Free places for all workers but the ``kept`` ones: no other is created or stays Pending, as the scheduler would
    evict another job's worker for it. None: no bound."""
    obstacle: str = ""
    """Reason of the refusal for which it is not more, one CamelCase word; empty: there is none."""
    probe: bool = False
    """The API server must admit a pod of the job (in a dry run) before other workers leave for it."""

    def in_replicas(self, workers: int) -> Share:
        """The share of a job whose replicas have so many workers each."""
        if workers == 1 or self.size is None:
            return self
        return replace(self, size=self.size // workers, spares=self.spares // workers, pending=self.pending // workers)

    def differs(self, other: Share | None) -> bool:
        """Whether the difference requires an action, beyond a changed message."""
        return other is None or _action(self) != _action(other)


_action = attrgetter(*(f.name for f in fields(Share) if f.name != "message"))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The shares of all jobs."""

    shares: Mapping[str, Share]
    """By UID of the job."""
    again: float | None = None
    """Seconds after which time alone may change the shares; None: never."""
    looks: int = 0
    """Nodes examined and workers granted: the cost of the decision."""
    lacking: tuple[int, ...] = ()
    """Of ``Snapshot.reserved``, in its order: how many of the pods have no room."""
