"""``ElasticTrainingJob``: the resource that users write and read. ``crd.py`` generates the CRD from these models.

Every field says who writes it, who reads it and what its absence means. Field names are camelCase on the wire.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from elastrain.api import accelerators, names, rules
from elastrain.api.embedded import AsDict, JobMeta, PodTemplate, rule_broken
from elastrain.api.fields import MemorySize, Nproc, QualifiedName


class ApiModel(BaseModel):
    """Base: camelCase on the wire, snake_case in code, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _aware(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("must name its time zone")
    return text


AwareTime = Annotated[str, AfterValidator(_aware)]
"""A moment as RFC 3339 has it."""


class CleanPodPolicy(StrEnum):
    RUNNING = "Running"
    """Delete the pods that still run; keep ended ones for their logs."""
    ALL = "All"
    NONE = "None"


class SuccessPolicy(StrEnum):
    RANK_ZERO = "RankZero"
    """The job has succeeded when the script of rank 0's worker has; the others get a minute to end."""
    ALL_WORKERS = "AllWorkers"
    """All workers of the last generation must end well, however long it takes."""


class CheckpointSpec(ApiModel):
    """Durable checkpoints: what a job resumes from when every worker is gone. In-process rescales do not need them."""

    path: Annotated[str, Field(min_length=1)]
    """Directory on a volume that every worker mounts at this path (local mode: relative to the manifest). May only
    change while ``suspend`` is true."""
    every_steps: PositiveInt | None = None
    """Save after this many committed steps. Absent with ``everySeconds`` absent: only when the job is drained."""
    every_seconds: PositiveInt | None = None
    """Save when this many seconds have passed since the last one."""
    keep: PositiveInt = 2
    """Complete checkpoints kept; older ones are deleted after a newer one is complete."""

    @field_validator("path")
    @classmethod
    def _path_says_where(cls, path: str) -> str:
        if not path.startswith(("/", ".")):
            raise rule_broken(rules.CHECKPOINT_PATH.words, path)
        return path


class PreflightSpec(ApiModel):
    """A check of the node, in an init container of the trainer's own image (`elastrain preflight`): are the
    accelerators there, do they compute what they should, how fast is their memory. A worker that fails it is replaced
    elsewhere."""

    min_bandwidth: PositiveInt | None = None
    """Least memory bandwidth of each accelerator (of the host for CPU-only workers), in GB/s. Absent: it is measured
    and logged only."""
    timeout_seconds: PositiveInt = 300
    """A check that takes longer has failed."""


class JobSpec(ApiModel):
    """Written by users (and ``kubectl scale`` or an HPA); the operator only reads it."""

    # In this order, since a validator sees the fields above its own only.
    max_replicas: PositiveInt
    """Most workers the job may ever have."""
    min_replicas: PositiveInt = 1
    """Fewest workers that may train; below it the job waits with its state. Where the operator shares the cluster out,
    so many start together or none, and nobody takes one of them away."""
    replicas: PositiveInt | None = None
    """Workers wanted now, between ``minReplicas`` and ``maxReplicas``; ``kubectl scale`` and an HPA write it.
    Absent: elastic: where the operator shares the cluster out, as many between the two as there is room for and other
    jobs leave, which it decides anew when that changes; elsewhere (and in local mode) as many as ``maxReplicas``."""
    warm_spares: NonNegativeInt = 0
    """Workers beyond those that train which stand by, started and warm, and take the place of a lost or added one in
    about half a second, instead of a cold start. At most ``maxReplicas``. They hold what a worker holds; where the
    operator shares the cluster out, only what no worker of any job needs."""
    nproc_per_node: Nproc = 1
    """Training processes (ranks) in each worker, or `auto`: one for each accelerator in the trainer container's limits,
    one if it has none. Local mode counts the CUDA devices of the machine. May only change while ``suspend`` is true."""
    accelerator: QualifiedName | None = None
    """Extended resource that ranks compute on, such as `nvidia.com/gpu`. Absent: the one in the trainer container's
    limits; needed only where several are and none, or more than one, is a known accelerator."""
    shared_memory: MemorySize | None = None
    """Size of `/dev/shm`, a volume in memory for data loaders and collectives, such as `16Gi`; `none`: the container
    runtime's own (64 MiB). What is written there counts as the pod's memory. Absent: half of the trainer container's
    memory limit; without a limit, what the node gives to pods. A template that mounts `/dev/shm` keeps its own."""
    template: Annotated[dict[str, Any], AsDict(PodTemplate)]
    """Pod template of a worker. The container named ``trainer``, else the first, runs the training command; elastrain
    puts its agent before that command and adds what the agent needs to know to the environment. A change is rolled
    out: running workers are replaced a few at a time (`maxUnavailable`) while the others train."""
    checkpoint: CheckpointSpec | None = None
    """Durable checkpoints: what the job resumes from when every worker is gone. Absent: none; the job then lives as
    long as one worker does."""
    suspend: bool = False
    """True: drain all workers at a step boundary, keep the job."""
    backoff_limit: NonNegativeInt = 6
    """Failures of the training script that are retried before the job fails. Lost nodes and preemption do not count."""
    infrastructure_limit: PositiveInt = 20
    """The job fails when, without one more committed step, more than so many times `maxReplicas` workers were lost to
    their node, to eviction or to a signal. Replacements come ever later meanwhile."""
    preemption_limit: PositiveInt = 100
    """The same for workers that the scheduler preempted."""
    active_deadline_seconds: PositiveInt | None = None
    """The job fails when it has been active (not suspended) for so long. Absent: no deadline."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Delete the job so long after it finished. Absent: keep it."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which pods are deleted when the job has finished."""
    success_policy: SuccessPolicy = SuccessPolicy.RANK_ZERO
    """Whose end is the job's: RankZero, the script of rank 0's worker (the others then have a minute to end), or
    AllWorkers, where each does something after the training loop that must not be lost, such as its share of an
    evaluation; one that fails then fails the job."""
    pending_deadline_seconds: PositiveInt | None = None
    """How long a worker may take to start, from its creation. One that does not is withdrawn and tried again after the
    same time, as long as `minReplicas` others run; where fewer do, the job fails, naming the pod and what kept it.
    Pods that a queue holds back are not late. Absent: workers are waited for, and the condition PodsReady says why."""
    max_unavailable: NonNegativeInt = 1
    """Workers replaced at a time after a change of `template`; their replacements are started first where there is room
    (so that as many pods more exist for a moment). 0: running workers keep the template that they were made from."""
    node_cooldown_seconds: NonNegativeInt = 1800
    """How long new workers keep off a node on which the pre-flight check failed, or three workers were lost within half
    an hour. 0: no node is ever excluded."""
    preflight: PreflightSpec | None = None
    """Check each node before a worker trains on it. Absent: no check."""
    managed_by: QualifiedName | None = None
    """Who creates the workers: absent or `elastrain.dev/operator`, this operator; anything else, such as
    `kueue.x-k8s.io/multikueue`: somebody else, and this operator leaves the job alone. May not change."""

    @field_validator("min_replicas", "replicas", "warm_spares")
    @classmethod
    def _sizes_are_ordered(cls, value: int | None, info: ValidationInfo) -> int | None:
        # `info.data` holds the valid ones of the fields above; a rule about an invalid one would only repeat its error.
        sizes = {to_camel(name): size for name, size in info.data.items()} | {to_camel(str(info.field_name)): value}
        rule = rules.SIZES[to_camel(str(info.field_name))]
        if value is not None and rule.needs <= sizes.keys() and not rule.holds(sizes):
            raise rule_broken(rule.in_words(sizes), value)
        return value

    @property
    def desired_replicas(self) -> int:
        """Workers wanted now, absence resolved; 0 when suspended."""
        if self.suspend:
            return 0
        return self.max_replicas if self.replicas is None else self.replicas

    @property
    def ranks_per_worker(self) -> int:
        """``nprocPerNode`` as a number.

        Raises ``AcceleratorUnclear`` (a ``ValueError``) where it is ``auto`` and the template's limits do not tell.
        """
        return accelerators.ranks(self.nproc_per_node, trainer_container(self.template), self.accelerator)


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
        if text is not None and datetime.fromisoformat(text).tzinfo is None:
            raise ValueError("must name its time zone")
        return text


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


class ElasticTrainingJob(ApiModel):
    """A data-parallel training job whose workers may join, leave and be lost while it trains."""

    api_version: Literal["elastrain.dev/v1alpha1"]
    kind: Literal["ElasticTrainingJob"]
    metadata: Annotated[dict[str, Any], AsDict(JobMeta)]
    spec: JobSpec
    """What is wanted. Written by users; the operator only reads it."""
    status: JobStatus | None = None
    """What is. Written by the operator only."""

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", "default"))


def trainer_container(template: dict[str, Any]) -> dict[str, Any]:
    """The container of ``template`` that trains.

    Raises ``ValueError`` naming the field when the template has no container.
    """
    containers = template.get("spec", {}).get("containers") or []
    if not containers:
        raise ValueError("spec.template.spec.containers: must have at least one container")
    named = [c for c in containers if c.get("name") == names.TRAINER_CONTAINER]
    return dict(named[0] if named else containers[0])
