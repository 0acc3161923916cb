"""``ElasticTrainingJob``: the resource that users write and read. ``crd.py`` generates the CRD from these models.

Every field says who writes it, who reads it and what its absence means. Field names are camelCase on the wire.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from elastrain.api import names, rules
from elastrain.api.embedded import AsDict, JobMeta, PodTemplate, rule_broken


class ApiModel(BaseModel):
    """Base: camelCase on the wire, snake_case in code, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]


class CleanPodPolicy(StrEnum):
    RUNNING = "Running"
    """Delete the pods that still run; keep ended ones for their logs."""
    ALL = "All"
    NONE = "None"


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


class JobSpec(ApiModel):
    """Written by users (and ``kubectl scale`` or an HPA); the operator only reads it."""

    # In this order, since a validator sees the fields above its own only.
    max_replicas: PositiveInt
    """Most workers the job may ever have."""
    min_replicas: PositiveInt = 1
    """Fewest workers that may train; below it the job waits with its state."""
    replicas: PositiveInt | None = None
    """Workers wanted now, between ``minReplicas`` and ``maxReplicas``; ``kubectl scale`` and an HPA write it.
    Absent: as many as ``maxReplicas``."""
    nproc_per_node: PositiveInt = 1
    """Training processes (ranks) in each worker. May only change while ``suspend`` is true."""
    template: Annotated[dict[str, Any], AsDict(PodTemplate)]
    """Pod template of a worker. The container named ``trainer``, else the first, runs the training command; elastrain
    puts its agent before that command and adds what the agent needs to know to the environment. A change applies to
    workers made after it: running ones are never restarted for it."""
    checkpoint: CheckpointSpec | None = None
    """Durable checkpoints: what the job resumes from when every worker is gone. Absent: none; the job then lives as
    long as one worker does."""
    suspend: bool = False
    """True: drain all workers at a step boundary, keep the job."""
    backoff_limit: NonNegativeInt = 6
    """Failures of the training script that are retried before the job fails. Lost nodes and preemption do not count."""
    active_deadline_seconds: PositiveInt | None = None
    """The job fails when it has been active (not suspended) for so long. Absent: no deadline."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Delete the job so long after it finished. Absent: keep it."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which pods are deleted when the job has finished."""

    @field_validator("min_replicas", "replicas")
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


class ConditionType(StrEnum):
    """Types of ``status.conditions``; exactly one of the last three is ever True."""

    PODS_READY = "PodsReady"
    """As many workers train as are wanted."""
    RUNNING = "Running"
    """A generation is in force and trains."""
    RESCALING = "Rescaling"
    """The generation in force is not the wanted one."""
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    """The last durable checkpoint succeeded."""
    COORDINATION_AVAILABLE = "CoordinationAvailable"
    """The operator reaches etcd."""
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


class JobStatus(ApiModel):
    """Written by the operator only. Unknown fields (of a newer operator) are ignored on reading."""

    model_config = ConfigDict(extra="ignore")

    phase: str | None = None
    """One word for a person: Pending, Running, Rescaling, Suspended, Succeeded, Failed. Programs read conditions."""
    conditions: list[Condition] = []
    """What programs read: one entry per type."""
    replicas: int = 0
    """Worker pods that exist and have not ended."""
    desired_replicas: int | None = None
    """Workers wanted now, with an absent ``spec.replicas`` and ``suspend`` resolved."""
    ready_replicas: int = 0
    """Workers in the generation in force."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource and the HPA."""
    generation: GenerationStatus | None = None
    """The generation in force."""
    step: int | None = None
    """Committed steps, as last reported."""
    last_rescale: LastRescale | None = None
    """The newest completed rescale."""
    restarts: RestartCounts = RestartCounts()
    """Workers replaced, per cause."""
    counted_failures: list[str] = []
    """UIDs of ended pods that are already in ``restarts`` and still exist, so that each counts once."""
    next_ordinal: int = 0
    """Ordinal of the next worker pod; ordinals are never used twice."""
    start_time: str | None = None
    """When the job became active, for ``activeDeadlineSeconds``. Absent while it is suspended."""
    completion_time: str | None = None
    """When the job succeeded or failed."""
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
