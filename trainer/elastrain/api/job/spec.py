"""What is wanted of a job. Written by users; the operator only reads it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from elastrain.api import accelerators, names, rules
from elastrain.api.job.base import ApiModel, NonNegativeInt, PositiveInt
from elastrain.api.job.embedded import AsDict, PodTemplate, rule_broken
from elastrain.api.job.fields import MemorySize, Nproc, QualifiedName


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


class PairsSpec(ApiModel):
    """An all-reduce between pairs of nodes, after each node's own check and before the worker starts. A node that
    fails, or is several times slower than others are, with two different partners is left out."""

    wait_seconds: PositiveInt = 60
    """How long a worker waits for the other workers' checks. Nobody waits longer for a missing one, or for a check that
    cannot be made: what is not known keeps no worker from training."""


class PreflightSpec(ApiModel):
    """A check of the node, in an init container of the trainer's own image (`elastrain preflight`): are the
    accelerators there, do they compute what they should, how fast is their memory. A worker that fails it is replaced
    elsewhere."""

    min_bandwidth: PositiveInt | None = None
    """Least memory bandwidth of each accelerator (of the host for CPU-only workers), in GB/s. Absent: it is measured
    and logged only."""
    timeout_seconds: PositiveInt = 300
    """A check that takes longer has failed. (Of the node itself; that of `pairs` has its own bounds.)"""
    pairs: PairsSpec | None = None
    """Whether the network between nodes is measured too. Absent: it is not."""


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


def trainer_container(template: dict[str, Any]) -> dict[str, Any]:
    """The container of ``template`` that trains.

    Raises ``ValueError`` naming the field when the template has no container.
    """
    containers = template.get("spec", {}).get("containers") or []
    if not containers:
        raise ValueError("spec.template.spec.containers: must have at least one container")
    named = [c for c in containers if c.get("name") == names.TRAINER_CONTAINER]
    return dict(named[0] if named else containers[0])
