"""A job's Workloads and what is decided about them, as plain immutable values. No client, no framework, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastrain.api import names
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Charge, PodPlacement

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
"""The only version that is used: Kueue serves it from 0.15."""
QUEUE_LABEL = names.LABEL_QUEUE
CLASS_LABEL = f"{GROUP}/priority-class"
EXTRAS_NOTE, ALWAYS = "elastrain.dev/kueue-extras", "always"
"""Annotation of a job, and its value: extras may wait in a StrictFIFO queue, too."""
POD_SET = "worker"
AHEAD = 2
"""Most extra Workloads of a job that wait in the queue at a time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One Workload of a job. ``index`` 0: the base, for ``minReplicas``; others: one more replica each."""

    name: str
    uid: str
    index: int = 0
    queue: str = ""
    count: int = 1
    """Pods."""
    priority: int = 0
    priority_class: str = ""
    """Name of its WorkloadPriorityClass; empty: none."""
    active: bool = True
    suspended: bool = False
    """``spec.active`` was set to false for the job's ``suspend``."""
    shape: str = ""
    """Digest of what its pods ask of a node (``render.shape``)."""
    reserved: bool = False
    """It holds quota."""
    admitted: bool = False
    evicted: str = ""
    """Reason of a true condition Evicted; empty: none."""
    ready: bool = False
    finished: bool = False
    going: bool = False
    """It is being deleted."""
    message: str = ""
    """Kueue's explanation of its present state; empty: Kueue has not said anything."""
    flavors: tuple[str, ...] = ()
    """ResourceFlavors that its admission names."""
    updates: PodPlacement = field(default_factory=PodPlacement)
    """Of its admission checks: ``podSetUpdates``."""
    topology: bool = False
    """Kueue places its pods: each starts with a scheduling gate."""

    @property
    def kind(self) -> str:
        """``base`` or ``extra``, for metrics."""
        return "extra" if self.index else "base"

    @property
    def runs(self) -> bool:
        """Whether its pods may exist."""
        return self.reserved and self.admitted and not (self.evicted or self.finished or self.going) and self.active


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor."""

    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


@dataclass(frozen=True, slots=True)
class Queue:
    """A LocalQueue and its ClusterQueue."""

    cluster_queue: str = ""
    strict: bool = False
    """StrictFIFO: a Workload that does not fit holds up all behind it."""
    closed: str = ""
    """Why it admits nothing now, in Kueue's words; empty: it is open."""


@dataclass(frozen=True, slots=True)
class View:
    """What the operator knows of Kueue that concerns one job."""

    problem: str = ""
    """Why it is unknown; nothing is then started or stopped. Empty: it is known."""
    workloads: tuple[Workload, ...] = ()
    queue: Queue | None = None
    """None: there is no such LocalQueue."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    priority: int | None = 0
    """Value of the job's priority class; None: there is no such class."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one job asks of Kueue. A replica has ``pods`` pods: one, or those of a group of workers."""

    base: str
    """Name of the base Workload."""
    queue: str
    """Empty: the job has left Kueue."""
    minimum: int
    wanted: int
    """Most replicas: ``replicas``, or ``maxReplicas``."""
    size: int = 0
    """Desired replicas of the last pass."""
    pods: int = 1
    priority_class: str = ""
    suspend: bool = False
    ended: str = ""
    """Succeeded or Failed; empty: the job has not ended."""
    shape: str = ""
    always_ahead: bool = False
    """Extras may wait in a StrictFIFO queue, too."""

    def extra_name(self, index: int) -> str:
        """Name of an extra Workload."""
        return f"{self.base}-{index}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod of the job that holds resources: all its containers have not ended."""

    name: str
    workload: str
    """That it is charged to; empty: none."""
    ready: bool = False
    bound: bool = True
    """It is on a node."""
    leaves_first: int = 0
    """Its place in the order in which workers leave; 0 leaves first."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Kept between passes. Losing it is safe: the next operator waits a little shorter or longer."""

    evicted: frozenset[str] = frozenset()
    """Evicted Workloads that still hold quota (UIDs): each was counted."""
    refused: int = 0
    """Extras in a row that Kueue took back before their workers were ready."""
    until: datetime | None = None
    """No extra is queued before."""
    missing: datetime | None = None
    """Since when pods run without their base Workload."""


# ---- decisions -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Create:
    """A Workload to create; ``index`` 0: the base."""

    name: str
    index: int
    count: int
    priority: int


@dataclass(frozen=True, slots=True)
class Delete:
    """A Workload that no pod is charged to."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """An evicted Workload whose last pod is gone: its reservation goes back."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Activate:
    """``spec.active``, by the job's ``suspend``."""

    name: str
    uid: str
    active: bool


@dataclass(frozen=True, slots=True)
class Change:
    """Fields of the spec."""

    name: str
    uid: str
    queue: str | None = None
    priority: int | None = None
    priority_class: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The condition PodsReady."""

    name: str
    uid: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended."""

    name: str
    uid: str
    outcome: str


Write = Create | Delete | Release | Activate | Change | Ready | Finish


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows for one job."""

    share: Share
    """Its size, the workers that leave first, and why it is not larger."""
    charges: tuple[Charge, ...] = ()
    """A place for each pod that may be created now."""
    unbound: tuple[tuple[PodPlacement, int], ...] | None = None
    """Admitted pods that are not on a node yet, by place; None: unknown."""
    writes: tuple[Write, ...] = ()
    memory: Memory = Memory()
    preempted: tuple[Workload, ...] = ()
    """Evicted since the last pass."""
    again: datetime | None = None
    """When time alone changes the decision."""
