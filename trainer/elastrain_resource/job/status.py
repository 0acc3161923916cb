"""The observed state of a job. Written by the operator only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, field_validator

from elastrain.api.base import AwareTime, StatusModel, aware, wrong_fields
from elastrain_resource.job.batches import BatchStatus, RankShareStatus


class ConditionType(StrEnum):
    """Types of ``status.conditions``; at most one of the last three is True."""

    PODS_READY = "PodsReady"
    """All desired workers train."""
    RUNNING = "Running"
    """A generation is in force and trains."""
    RESCALING = "Rescaling"
    """The generation in force differs from the desired one."""
    GROWN = "Grown"
    """The desired number of workers is the largest that the spec allows; otherwise the message names the cause. Only
    where the operator shares the cluster out."""
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    """The last durable checkpoint succeeded."""
    WORKERS_HEALTHY = "WorkersHealthy"
    """The generation in force has no straggler and no hanging worker."""
    COORDINATION_AVAILABLE = "CoordinationAvailable"
    """The operator reaches etcd."""
    GANG_SCHEDULED = "GangScheduled"
    """The scheduler binds ``minReplicas`` workers together or none. Absent where no scheduler is told of gangs."""
    STATE_PROTECTED = "StateProtected"
    """The disruption budget and the annotations that keep the last worker with the job's state are written. Absent
    until the API server first refuses one of them."""
    UP_TO_DATE = "UpToDate"
    """All workers use the present template. Absent until the first change of the template."""
    NODES_EXCLUDED = "NodesExcluded"
    """New workers avoid some nodes for a while. Absent until the first exclusion."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(StatusModel):
    """One observation about the job."""

    type: str
    """The type of the condition, such as Running or CheckpointHealthy."""
    status: str
    """True, False or Unknown."""
    reason: str
    """The cause, as one CamelCase word for programs."""
    message: str = ""
    """The cause, as a sentence for people."""
    last_transition_time: str
    """Time of the last change of ``status``."""


class GenerationStatus(StatusModel):
    """The generation in force."""

    number: int
    """Number of the generation in this job, from 1."""
    size: int
    """Workers in the generation."""
    reason: str
    """Reason of its formation: Start, Grow, Drain, Lost, Broken, Replace, Suspend or Stop."""


class LastRescale(StatusModel):
    """The newest completed rescale, as measured by the trainer."""

    from_: Annotated[int, Field(alias="from")]
    """Ranks before."""
    to: int
    """Ranks after."""
    reason: str
    """Reason of the generation after the rescale."""
    pause_seconds: float
    """Seconds from the last committed step before the rescale to the first after it, measured by a survivor."""
    lost_steps: int
    """Committed steps that were repeated."""
    phases: dict[str, float] = {}
    """Seconds by phase of the rescale, as rank 0 measured them: detect, decide, connect, transfer, first_step. Only
    unplanned changes have detect and decide; in planned changes ranks connect during training."""
    time: str | None = None
    """Time at which the operator first observed the rescale."""


class RestartCounts(StatusModel):
    """Replaced workers by cause; only ``user`` counts against ``backoffLimit``."""

    user: int = 0
    """The training script ended with an error."""
    infrastructure: int = 0
    """Node lost, pod evicted or deleted by another client, or rank killed by a signal."""
    preemption: int = 0
    """The scheduler preempted the pod."""


class LossStreak(StatusModel):
    """Workers lost in a row without a committed step in between, for causes other than the script."""

    count: int = 0
    """Their number."""
    step: int | None = None
    """Committed steps at the last loss."""
    time: AwareTime
    """Time at which the last loss was counted."""


class Withdrawal(StatusModel):
    """Workers that did not start within `pendingDeadlineSeconds`; the operator retries them later."""

    until: AwareTime
    """Time of the retry."""
    message: str
    """The cause for the first worker, with the pod's name, its reason and Kubernetes' own message."""


class ExcludedNode(StatusModel):
    """A node that new workers avoid."""

    node: str
    """Its name."""
    until: AwareTime
    """End of the exclusion."""
    message: str
    """The cause as a sentence."""


class Figures(StatusModel):
    """Base of the operator's measurements."""

    @field_validator("until", "time", "since", check_fields=False)
    @classmethod
    def _moment(cls, text: str | None) -> str | None:
        return None if text is None else aware(text)


class ProgressStatus(Figures):
    """Progress of training, from rank 0's last report."""

    of: int | None = None
    """Committed steps at which the job finishes, as far as the script has said: the end of `job.epochs`, else of its
    present loop. Absent: unknown."""
    epoch: int = 0
    """Epochs completed."""
    samples: int | None = None
    """Samples of the committed steps, over all epochs. Absent: unknown."""
    effective_samples: int | None = None
    """The same, each counted by what it was worth in its batch, in samples of the script's batch: progress. Absent
    without `spec.batch`."""
    samples_per_second: float | None = None
    """Samples per second at the rate of undisturbed steps. Absent: unknown."""
    loss: float | None = None
    """Mean loss over the last committed global batch, to six digits. Absent: unknown or not finite."""
    eta: str | None = None
    """Estimated time of the last step at that rate, without disturbances. Absent: unknown."""


class MeasuredSize(StatusModel):
    """The time of a step at one size and placement."""

    workers: int
    """Workers in the generation."""
    nodes: int
    """Nodes on which they were."""
    step_seconds: float
    """Smoothed seconds of an undisturbed step."""
    batch: int | None = None
    """Samples of the step. Absent without ``spec.batch``."""


class AcceleratorSeconds(Figures):
    """Use of the job's accelerator seconds: `training`, `rescaling`, `waiting`, `redone` and `spare` add up to the
    total that its pods have held. A worker without accelerators counts as one."""

    training: float = 0.0
    """In a generation that trains."""
    rescaling: float = 0.0
    """In a generation that commits no step, during a change or after a loss: the pauses."""
    waiting: float = 0.0
    """Outside of a generation (starting or leaving), or in a generation with fewer than ``minReplicas`` members
    left."""
    rescaling_phases: dict[str, float] = {}
    """The measured part of the pauses by phase: detect, decide, connect, transfer, first_step. Below ``rescaling`` if
    phases are unknown; above it while a measured pause is not subtracted from ``training`` yet."""
    redone: float = 0.0
    """Repeated training of committed steps, after the last copy of their state was lost."""
    spare: float = 0.0
    """Warm spares, ready to train."""
    redone_steps: int = 0
    """All repeated steps."""
    generation: int = 0
    """Newest generation whose rescale is included."""
    until: str | None = None
    """End of the counted time."""


class SparesStatus(Figures):
    """Warm spares, in addition to the training workers."""

    ready: int = 0
    """Spares that are ready to train."""
    desired: int = 0
    """Desired spares: ``spec.warmSpares``, or fewer if capacity is short. None before the job trains."""


class UnhealthyWorker(Figures):
    """A worker that delays the others."""

    worker: str
    """Its pod."""
    health: str
    """``slow``: its ranks compute several times as long per step as the other ranks. ``stuck``: one rank does not
    return from the script while the others wait."""
    message: str = ""
    """Its ranks and its node, with the agent's measurement."""
    since: str
    """Time at which the operator first observed it."""


class LastFailure(Figures):
    """The newest lost worker, with the last lines of its rank. Of several losses within 10 s, the first."""

    time: str
    """Time at which the worker ended."""
    worker: str
    """Its pod."""
    rank: int | None = None
    """Global rank of the failed process. Absent: the agent did not report it."""
    cause: str
    """Field of ``restarts`` that counts this loss."""
    reason: str
    """The cause, as one CamelCase word."""
    message: str = ""
    """The cause, in one line."""
    log_tail: str = ""
    """Last lines of the failed rank, unchanged; at most 2,000 characters."""


class Leaving(StatusModel):
    """Workers that were asked to leave at the same time."""

    since: AwareTime
    """Time of the request: the start of their drain deadline."""
    workers: list[str]
    """Names of their pods, as long as the pods exist."""


class JobStatus(StatusModel):
    """Written by the operator only."""

    shown: ClassVar[frozenset[str]] = frozenset(
        {"progress", "lastRescale", "measuredSizes", "spares", "unhealthyWorkers", "batch", "rankShares"}
    )
    """Fields (as on the wire) that no promise depends on: one that cannot be read counts as absent."""

    @classmethod
    def read(cls, raw: Any) -> Self:
        """The status of an object. Raises ``ValidationError`` if a field cannot be read that is not only shown."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            wrong = wrong_fields(error)
            if not wrong <= cls.shown:
                raise
            return cls.model_validate({name: value for name, value in raw.items() if name not in wrong})

    phase: str | None = None
    """The state in one word, for people: Pending, Running, Rescaling, Suspended, Succeeded or Failed."""
    conditions: list[Condition] = []
    """The state for programs: one entry per type."""
    replicas: int = 0
    """Replicas that exist, or are being created, and have not ended, without warm spares."""
    desired_replicas: int | None = None
    """Desired number of replicas (workers, or groups of several workers), with an absent ``spec.replicas`` and
    ``suspend`` resolved."""
    ready_replicas: int = 0
    """Replicas in the generation in force."""
    spares: SparesStatus | None = None
    """Warm spares. Absent: ``spec.warmSpares`` is 0, or the job has ended."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource and the HPA."""
    generation: GenerationStatus | None = None
    """The generation in force."""
    step: int | None = None
    """Committed steps, as last reported."""
    progress: ProgressStatus | None = None
    """Progress of training."""
    last_rescale: LastRescale | None = None
    """The newest completed rescale."""
    measured_sizes: list[MeasuredSize] = []
    """Times of a step by size and placement, from which other sizes are predicted: at most twelve, the newest last."""
    batch: BatchStatus | None = None
    """The batch of a step. Absent: the batch is the script's."""
    rank_shares: list[RankShareStatus] = []
    """Speeds and shares of the slowest ranks, slowest first, and of the fastest one if a bound holds it: at most 16.
    In a sharded model each group is named by its first rank. Empty: ``spec.shares`` is Equal, or the generation has not
    decided yet."""
    accelerator_seconds: AcceleratorSeconds | None = None
    """Use of the job's accelerator seconds."""
    unhealthy_workers: list[UnhealthyWorker] = []
    """Stragglers and hanging workers: at most ten, hanging workers first."""
    restarts: RestartCounts = RestartCounts()
    """Replaced workers, by cause."""
    last_failure: LastFailure | None = None
    """The newest lost worker, with the last lines of its rank."""
    counted_failures: list[str] = []
    """UIDs of existing ended pods that ``restarts`` already includes, so that each counts once."""
    leaving: list[Leaving] = []
    """Existing workers that were asked to leave."""
    next_ordinal: int = 0
    """Ordinal of the next worker pod; ordinals are never reused."""
    etcd: str = ""
    """Endpoints of the etcd of the operator that creates the job's workers: others leave it alone. Empty: unclaimed."""
    start_time: AwareTime | None = None
    """Time at which the job became active, for ``activeDeadlineSeconds``. Absent while suspended."""
    completion_time: AwareTime | None = None
    """Time at which the job succeeded or failed."""
    loss_streak: LossStreak | None = None
    """Losses since the last committed step. Absent: none."""
    withdrawal: Withdrawal | None = None
    """Workers that did not start in time. Absent: none, or the retry is due."""
    excluded_nodes: list[ExcludedNode] = []
    """Nodes that new workers avoid; the newest 16."""
    observed_generation: int | None = None
    """``metadata.generation`` of the spec that this status describes."""
