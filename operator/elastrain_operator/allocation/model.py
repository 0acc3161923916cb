"""What the allocator is given and what it answers, as plain immutable values. No client, no framework, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

Amounts = tuple[tuple[str, int], ...]
"""Resource → whole amount, sorted by name: ``(("cpu", 500), ("nvidia.com/gpu", 4), ("pods", 1))``. CPU is in
thousandths of a core, memory in bytes, everything else in pieces."""

PODS = "pods"
"""Kubernetes' name for how many pods a node takes: each worker uses one."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """One of a pod's tolerations, in Kubernetes' terms; an empty string is an absent field."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a required node affinity: In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Which nodes a pod may be bound to. Equal for all jobs that say the same."""

    selector: tuple[tuple[str, str], ...] = ()
    """Labels that a node must have: ``nodeSelector``."""
    terms: tuple[tuple[Requirement, ...], ...] = ()
    """Required node affinity: one of the terms must hold; empty: nothing is required."""
    tolerations: tuple[Toleration, ...] = ()
    avoid: tuple[str, ...] = ()
    """Nodes (names) on which the operator does not put new workers for a while."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What one worker asks of a node. Equal for all jobs of equal templates."""

    demand: Amounts
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, as Kubernetes defines it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what of it is there for workers."""

    name: str
    room: Mapping[str, int]
    """Allocatable minus what pods that are no workers request; may be negative where a node is overcommitted."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    going: bool = False
    """Its removal is announced by a known taint or condition, or it is being deleted."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker pod that counts: neither ended nor on its way out."""

    name: str
    node: str = ""
    """Empty: not bound yet."""
    demand: Amounts = ()
    """What it holds there; the template may have changed since."""
    trains: bool = False
    """It is in the newest generation."""
    spare: bool = False
    """It stands by beyond the desired number: any other worker may take its room."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod on its way out still holds."""

    node: str
    demand: Amounts


@dataclass(frozen=True, slots=True)
class Job:
    """A job that wants workers."""

    uid: str
    namespace: str
    name: str
    min: int
    cap: int
    """Most workers it wants now: ``replicas``, or ``maxReplicas`` where that is absent."""
    kind: Kind
    elastic: bool = True
    """``replicas`` is absent: what is above ``min`` is shared fairly, and a change has to pay."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: order of the queue."""
    workers: tuple[Worker, ...] = ()
    """Those who stay longest first (``policy/size/victims.py``)."""
    size: int = 0
    """Workers wanted by the last decision; 0: it has not been let in."""
    trains: bool = False
    """A generation of it is in force: its workers hold state, and are kept even if fewer than ``min`` are left."""
    resized: datetime | None = None
    """When its size was last changed; None: not by this operator."""
    pause: float | None = None
    """Seconds that its last rescale took, as measured; None: it never had one."""
    speeds: tuple[tuple[int, float], ...] = ()
    """(workers, steps a second) as measured at different sizes, ascending; empty: nothing is known."""
    remaining: float | None = None
    """Seconds of training left at the present speed, as the trainer counts; None: not known."""
    nproc: int = 1
    """Ranks in a worker, for words."""
    spares: int = 0
    """Warm spares that it would like to have beside its workers."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What one job brings into the sharing."""

    job: Job | None
    """None: it wants nothing (suspended, ended, about to end) and only holds."""
    priority_class: str = ""
    """Name; its value is the cluster's to say."""
    leaving: tuple[Held, ...] = ()
    speed: tuple[int, float] | None = None
    """(workers, steps a second) at this moment; None: not known."""

    def differs(self, other: Claims | None) -> bool:
        """Whether it is a reason to share out anew; mere progress is none."""
        return other is None or self._essence() != other._essence()

    def _essence(self) -> Claims:
        job = replace(self.job, remaining=None) if self.job else None
        return replace(self, job=job, speed=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment."""

    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    leaving: tuple[Held, ...] = ()
    """What workers on their way out still hold: of jobs that shrink, have ended or were suspended."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the cluster is shared out; set by the administrator."""

    quotas: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    """Namespace → resource → most that its workers may hold. Absent: no bound."""
    weights: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Namespace → parts of what is above the minima, at least 1. Absent: 1."""
    hysteresis: float = 60.0
    """Seconds for which a job that was resized is left alone by everything that is a mere improvement."""
    horizon: float = 600.0
    """Seconds over which a gain is counted; its real duration is unknown."""
    pause: float = 5.0
    """Seconds that a rescale is taken to cost a job that has not measured one yet."""
    startup: float = 20.0
    """Seconds in which a new worker holds accelerators and does not train yet."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one job gets."""

    size: int | None
    """Workers wanted; None: not known, the job keeps the size it has."""
    reason: str
    """Why it is not more, one CamelCase word: the reason of the condition ``Grown``."""
    message: str
    """The same with numbers, for people."""
    release: frozenset[str] = frozenset()
    """Workers (pod names) that should leave first, so that what others need becomes free where they need it."""
    replace: frozenset[str] = frozenset()
    """Workers on nodes that go, for which there is room elsewhere: to be asked to leave though none is too many."""
    shaky: frozenset[str] = frozenset()
    """Workers on nodes that go, take no pods any more or are not ready: the first to leave."""
    blind: bool = False
    """``size`` is None for want of a permission, not of time: a new job need not wait for it."""
    spares: int = 0
    """Warm spares beside the workers, in room that no worker needs."""

    def differs(self, other: Share | None) -> bool:
        """Whether there is something to do, and not only something else to say."""
        if other is None:
            return True
        mine = (self.size, self.reason, self.release, self.replace, self.shaky, self.blind, self.spares)
        theirs = (other.size, other.reason, other.release, other.replace, other.shaky, other.blind, other.spares)
        return mine != theirs


@dataclass(frozen=True, slots=True)
class Allocation:
    """The answer for all jobs."""

    shares: Mapping[str, Share]
    """By UID of the job."""
    again: float | None = None
    """Seconds after which the clock alone may change the answer; None: it may not."""
    looks: int = 0
    """Nodes looked at and workers granted: what the decision cost, in steps."""
