"""What is, of a job. Written by the operator only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from elastrain.api.job.base import ApiModel, AwareTime, aware


class ConditionType(StrEnum):
    """Types of ``status.conditions``; exactly one of the last three is ever True."""

    PODS_READY = "PodsReady"
    """As many workers train as are wanted."""
    RUNNING = "Running"
    """A generation is in force and trains."""
    RESCALING = "Rescaling"
    """The generation in force is not the wanted one."""
    GROWN = "Grown"
    """As many workers are wanted as the spec allows; its message says why not more. Only where the operator shares the
    cluster out."""
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    """The last durable checkpoint succeeded."""
    WORKERS_HEALTHY = "WorkersHealthy"
    """No worker of the generation in force is a straggler, and none hangs."""
    COORDINATION_AVAILABLE = "CoordinationAvailable"
    """The operator reaches etcd."""
    UP_TO_DATE = "UpToDate"
    """All workers are of the present template. Absent while it has never changed."""
    NODES_EXCLUDED = "NodesExcluded"
    """New workers keep off some nodes for a while. Absent while they never did."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(ApiModel):
    """One observation about the job."""

    type: str
    """What is observed, such as Running or CheckpointHealthy."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """Why, as one CamelCase word for programs."""
    message: str = ""
    """Why, as a sentence for people."""
    last_transition_time: str
    """When ``status`` last changed."""
    observed_generation: int | None = None
    """``metadata.generation`` of the spec that this condition answers."""


class GenerationStatus(ApiModel):
    """The generation in force."""

    number: int
    """Counts the generations of this job, from 1."""
    size: int
    """Workers in it."""
    reason: str
    """Why it was formed: Start, Grow, Drain, Lost, Broken, Replace, Suspend or Stop."""


class LastRescale(ApiModel):
    """The newest completed rescale, as measured by the trainer."""

    from_: Annotated[int, Field(alias="from")]
    """Ranks before."""
    to: int
    """Ranks after."""
    reason: str
    """Reason of the generation that it led to."""
    pause_seconds: float
    """From the last committed step before it to the first after it, as a survivor saw it."""
    lost_steps: int
    """Committed steps that had to be done again."""
    phases: dict[str, float] = {}
    """Seconds by phase of the rescale, as rank 0 measured them: detect, decide, connect, transfer, first_step. Those of
    detect and decide are there for unplanned changes only; in planned ones ranks connect while training goes on."""
    time: str | None = None
    """When the operator first saw it."""


class RestartCounts(ApiModel):
    """Workers replaced, per cause; only ``user`` counts against ``backoffLimit``."""

    user: int = 0
    """The training script ended with an error."""
    infrastructure: int = 0
    """Node lost, pod evicted or deleted by others, rank killed by a signal."""
    preemption: int = 0
    """The scheduler preempted the pod."""


class LossStreak(ApiModel):
    """Workers lost in a row, without a committed step in between, through no fault of the script."""

    infrastructure: int = 0
    """To their node, to eviction or to a signal."""
    preemption: int = 0
    """To the scheduler."""
    step: int | None = None
    """Committed steps at the last loss."""
    time: AwareTime
    """When the last loss was counted."""
    message: str = ""
    """The last loss, for people."""


class Withdrawal(ApiModel):
    """Workers that did not start within `pendingDeadlineSeconds` and are not tried again for a while."""

    until: AwareTime
    """When they are."""
    reason: str
    """What kept the first of them, as one CamelCase word."""
    message: str
    """The same for people, with the pod's name and Kubernetes' own words."""


class ExcludedNode(ApiModel):
    """A node that new workers keep off."""

    node: str
    """Its name."""
    until: AwareTime
    """When that ends."""
    reason: str
    """PreflightFailed or WorkersLost."""
    message: str
    """The same for people."""


class NodeLoss(ApiModel):
    """A worker lost on a node for infrastructure's sake."""

    node: str
    """The node's name."""
    time: AwareTime
    """When it was counted."""


class Figures(ApiModel):
    """Base of what the operator measures. Unknown fields (of a newer operator) are ignored on reading."""

    model_config = ConfigDict(extra="ignore")

    @field_validator("until", "time", "since", check_fields=False)
    @classmethod
    def _moment(cls, text: str | None) -> str | None:
        return None if text is None else aware(text)


class ProgressStatus(Figures):
    """How far training is, as rank 0 last reported it."""

    step: int
    """Committed steps."""
    of: int | None = None
    """Committed steps with which the job will be finished. Absent: the script has not said."""
    epoch: int = 0
    """Epochs completed."""
    samples_per_second: float | None = None
    """At the pace of undisturbed steps; absent until it is known."""
    loss: float | None = None
    """Mean loss over the last committed global batch, to six digits. Absent: not known, or no finite number."""
    eta: str | None = None
    """When the last step will be committed at that pace, all that may disturb it left out. Absent: not known."""


class AcceleratorSeconds(Figures):
    """Where the accelerator seconds of a job went: the first five add up to what its pods have held. The other fields
    are the operator's bookmarks, by which the next operator goes on. A worker that asks for no accelerator counts as
    one."""

    training: float = 0.0
    """In a generation that trains."""
    rescaling: float = 0.0
    """In a generation, without a step being committed, because it was changing or had lost a worker: the pauses."""
    waiting: float = 0.0
    """Held outside of any generation, starting or leaving, or in one that fewer than ``minReplicas`` were left of."""
    redone: float = 0.0
    """Training again what had been committed before and was lost with the last copy of it."""
    spare: float = 0.0
    """Held by warm spares that stood by, ready to train."""
    held: int = 0
    """Accelerators that the job's pods hold."""
    in_generation: int = 0
    """Those of them that belong to workers in the generation in force."""
    standing_by: int = 0
    """Those of them that belong to warm spares."""
    use: Literal["training", "rescaling", "waiting"] = "waiting"
    """What those in the generation do."""
    owed_rescaling: float = 0.0
    """Seconds of pauses that the trainer has measured and that are still to be taken from ``training``; negative: seen
    by the operator and not yet measured by the trainer."""
    owed_redone: float = 0.0
    """The same for steps that had to be done again."""
    unpriced_steps: int = 0
    """Steps that had to be done again and that nobody knows the duration of yet."""
    redone_steps: int = 0
    """All steps that had to be done again."""
    generation: int = 0
    """Newest generation whose rescale is in the books."""
    until: str | None = None
    """Up to when all this is counted."""


class SparesStatus(Figures):
    """Warm spares, beside the workers that train."""

    ready: int = 0
    """Those that could train at once."""
    desired: int = 0
    """Those wanted now: ``spec.warmSpares``, or as many as there is room for. None before the job trains."""


class UnhealthyWorker(Figures):
    """A worker that holds the others up."""

    worker: str
    """Its pod."""
    node: str = ""
    """Where the pod runs."""
    ranks: str = ""
    """Global rank that it is about, as 3; all of the worker, as 8-15, where its agent does not say; empty: it is in no
    generation."""
    health: str
    """``slow``: its ranks compute several times as long per step as the others do. ``stuck``: one of them does not come
    back from the script while the others wait."""
    message: str = ""
    """What its agent has measured."""
    since: str
    """When the operator first saw it."""


class LastFailure(Figures):
    """The newest worker that was lost, with the last words of its rank; of several in the same ten seconds the one that
    failed first."""

    time: str
    """When it ended."""
    worker: str
    """Its pod."""
    rank: int | None = None
    """Global rank of the process that failed. Absent: the agent could not say."""
    cause: str
    """Field of ``restarts`` in which it counts."""
    reason: str
    """One CamelCase word."""
    message: str = ""
    """What happened, in one line."""
    log_tail: str = ""
    """Last lines that the failed rank wrote, as it wrote them; at most 2,000 characters."""


class Leaving(ApiModel):
    """Workers that were asked to leave at the same time."""

    since: AwareTime
    """When they were asked: the clock of their drain deadline."""
    workers: list[str]
    """Names of their pods, as long as those exist."""


class JobStatus(ApiModel):
    """Written by the operator only. Unknown fields (of a newer operator) are ignored on reading."""

    model_config = ConfigDict(extra="ignore")

    phase: str | None = None
    """One word for a person: Pending, Running, Rescaling, Suspended, Succeeded, Failed. Programs read conditions."""
    conditions: list[Condition] = []
    """What programs read: one entry per type."""
    replicas: int = 0
    """Worker pods that exist and have not ended, warm spares left out."""
    desired_replicas: int | None = None
    """Workers wanted now, with an absent ``spec.replicas`` and ``suspend`` resolved."""
    ready_replicas: int = 0
    """Workers in the generation in force."""
    spares: SparesStatus | None = None
    """Warm spares. Absent: ``spec.warmSpares`` asks for none, or the job has ended."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource and the HPA."""
    generation: GenerationStatus | None = None
    """The generation in force."""
    step: int | None = None
    """Committed steps, as last reported."""
    progress: ProgressStatus | None = None
    """How far training is."""
    last_rescale: LastRescale | None = None
    """The newest completed rescale."""
    accelerator_seconds: AcceleratorSeconds | None = None
    """Where the accelerator seconds of the job went."""
    unhealthy_workers: list[UnhealthyWorker] = []
    """Stragglers and workers that hang: the first ten, those that hang first."""
    restarts: RestartCounts = RestartCounts()
    """Workers replaced, per cause."""
    last_failure: LastFailure | None = None
    """The newest lost worker, and what its rank wrote last."""
    counted_failures: list[str] = []
    """UIDs of ended pods that are already in ``restarts`` and still exist, so that each counts once."""
    leaving: list[Leaving] = []
    """Workers that were asked to leave and still exist."""
    next_ordinal: int = 0
    """Ordinal of the next worker pod; ordinals are never used twice."""
    start_time: AwareTime | None = None
    """When the job became active, for ``activeDeadlineSeconds``. Absent while it is suspended."""
    completion_time: AwareTime | None = None
    """When the job succeeded or failed."""
    loss_streak: LossStreak | None = None
    """Losses since the last committed step. Absent: none."""
    withdrawal: Withdrawal | None = None
    """Workers that did not start in time. Absent: none, or it is time to try again."""
    excluded_nodes: list[ExcludedNode] = []
    """Nodes that new workers keep off; the newest 16."""
    node_losses: list[NodeLoss] = []
    """Recent losses by node; the newest 64."""
    observed_generation: int | None = None
    """``metadata.generation`` of the spec that this status answers."""
