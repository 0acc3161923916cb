"""The desired state of a job. Written by users; the operator only reads it."""

from __future__ import annotations

from enum import StrEnum
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from elastrain.api import names
from elastrain.api.base import ApiModel, NonNegativeInt, PositiveInt, rule_broken
from elastrain.api.settings import (
    ALL,
    MAX_SHARE,
    BatchSettings,
    BatchSpec,
    CheckpointSpec,
    DivergenceSpec,
    RankSettings,
    ShareRule,
    shape_fields,
    workers_of_a_group,
)
from elastrain.api.shape import ONE_RANK, SHARDS, MeshDimension, Shape
from elastrain_resource import accelerators, rules
from elastrain_resource.job.embedded import AsDict, PodTemplate
from elastrain_resource.job.fields import Nproc, QualifiedName, Shards


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when a job has ended."""

    RUNNING = "Running"
    """Delete running pods; keep ended pods for their logs."""
    ALL = "All"
    NONE = "None"


class SuccessPolicy(StrEnum):
    """When a job has succeeded."""

    RANK_ZERO = "RankZero"
    """The job succeeds when the script of rank 0's worker succeeds; the other workers then have 60 s to end."""
    ALL_WORKERS = "AllWorkers"
    """All workers of the last generation must succeed, without a time limit."""


class PairsSpec(ApiModel):
    """An all-reduce between pairs of nodes, after each node's own check and before the worker starts. The operator
    excludes a node that fails, or is several times slower than other nodes, with two different partners."""

    wait_seconds: PositiveInt = 60
    """Seconds that a worker waits for the other workers' checks. A missing or impossible check does not delay training
    further: an unknown result keeps no worker from training."""


class PreflightSpec(ApiModel):
    """A check of the node, in an init container of the trainer's own image (`elastrain preflight`): presence of the
    accelerators, correctness of their arithmetic, memory bandwidth. A worker that fails the check is replaced on
    another node."""

    min_bandwidth: PositiveInt | None = None
    """Least memory bandwidth of each accelerator (of the host for CPU-only workers), in GB/s. Absent: the check only
    measures and logs it."""
    timeout_seconds: PositiveInt = 300
    """Seconds after which the node's own check fails. The check of `pairs` has its own bounds."""
    pairs: PairsSpec | None = None
    """Measure the network between nodes too. Absent: no."""


class ParallelismSpec(ApiModel):
    """How a model that does not fit one accelerator is spread over ranks: by `mesh`, or its short forms `shards` and
    `tensor`."""

    mesh: Annotated[list[MeshDimension], Field(min_length=1, max_length=rules.MOST_DIMENSIONS)] | None = None
    """The ranks that hold one copy of the model together, a *group*, as a mesh: its dimensions, outermost first, as
    `job.mesh` has them; neighbours in a worker differ in the last one. The product of the sizes is the number of ranks,
    to which the rules of `shards` apply. Not with `shards` and `tensor`. Absent: they say it. May only change while
    ``suspend`` is true."""
    shards: Shards = 1
    """Ranks that hold one copy of the model together, a *group*; the script shards it by
    `fully_shard(…, mesh=job.mesh)`. 1: each rank holds a whole copy. A number must divide `nprocPerNode`, so that a
    worker is one group or several, or be a multiple of it. Then a group has `shards` / `nprocPerNode` workers, and a
    *replica* is a group in all fields of the job and in `kubectl scale`. `all`: the ranks of all workers hold one copy,
    which is sharded anew when their number changes. May only change while ``suspend`` is true."""
    tensor: PositiveInt = 1
    """Ranks of a group that compute each layer together, on the same samples: tensor parallelism. Must divide `shards`,
    a number: `shards` / `tensor` ranks remain for `fully_shard`. `job.mesh` then has two dimensions; the script calls
    `parallelize_module(layer, job.mesh["tp"], plan)`, then `fully_shard(layer, mesh=job.mesh["dp_shard"])`. Neighbours
    in a worker are taken. May only change while ``suspend`` is true."""
    topology_key: QualifiedName | None = None
    """Label of nodes, such as that of a rack or an NVLink domain: the workers of a group prefer nodes on which its
    value is the same. Absent: no preference."""
    max_redone_steps: NonNegativeInt = 20
    """With `shards: all`: most committed steps that are repeated after ranks are lost. Each rank copies its shard to
    the memory of a rank on another node, in the background and at least twice within so many steps. Less repeats less
    and copies more. 0: no copies; a lost rank then loses the state. May only change while ``suspend`` is true."""

    @field_validator("mesh")
    @classmethod
    def _is_a_shape(cls, mesh: list[MeshDimension] | None) -> list[MeshDimension] | None:
        names = [d.name for d in mesh or ()]
        for rule, holds in (
            (rules.DIMENSIONS_ARE_UNIQUE, len(set(names)) == len(names)),
            (rules.MESH_HAS_SHARDS, SHARDS in names),
            (rules.MESH_IS_BOUNDED, prod(d.size for d in mesh or ()) <= rules.MOST_RANKS),
        ):
            if mesh is not None and not holds:
                raise rule_broken(rule.words, ", ".join(f"{d.name}: {d.size}" for d in mesh))
        return mesh

    @model_validator(mode="after")
    def _has_one_spelling(self) -> ParallelismSpec:
        if self.mesh is not None and (self.shards != 1 or self.tensor != 1):
            raise rule_broken(rules.MESH_IS_ALONE.words, {"shards": self.shards, "tensor": self.tensor})
        return self

    @property
    def shape(self) -> Shape | None:
        """Of a group; None: `shards: all`, one group of all ranks."""
        if self.mesh is not None:
            return Shape.from_mesh(self.mesh)
        return None if self.shards == ALL else Shape.of(self.shards, self.tensor)


class JobSpec(ApiModel):
    """Written by users (and ``kubectl scale`` or an HPA); the operator only reads it."""

    # The order matters: a validator sees only the fields above its own.
    max_replicas: PositiveInt
    """Largest number of workers."""
    min_replicas: PositiveInt = 1
    """Smallest number of workers that may train; below it the job waits and keeps its state. Where the operator shares
    the cluster out, it starts this many workers together or none, and never takes one of them away."""
    replicas: PositiveInt | None = None
    """Desired number of workers, between ``minReplicas`` and ``maxReplicas``; ``kubectl scale`` and an HPA write it.
    Absent: elastic. Where the operator shares the cluster out, it then chooses the number by the free capacity and the
    other jobs, and adjusts it as they change. Elsewhere (and in local mode) the number is ``maxReplicas``."""
    warm_spares: NonNegativeInt = 0
    """Warm spares: started workers beyond the training ones. A spare replaces a lost worker or joins in about 0.5 s,
    without a cold start. At most ``maxReplicas``. A spare holds the resources of a worker; where the operator shares
    the cluster out, spares use only capacity that no worker of any job needs."""
    nproc_per_node: Nproc = 1
    """Training processes (ranks) in each worker, or `auto`: one for each accelerator in the trainer container's limits,
    one without accelerators. Local mode counts the CUDA devices of the machine. May only change while ``suspend`` is
    true."""
    accelerator: QualifiedName | None = None
    """Extended resource that ranks compute on, such as `nvidia.com/gpu`. Absent: the extended resource in the trainer
    container's limits. Required if the limits contain several and not exactly one known accelerator."""
    template: Annotated[dict[str, Any], AsDict(PodTemplate)]
    """Pod template of a worker. The container named ``trainer``, else the first, runs the training command. elastrain
    starts its agent before that command and adds the agent's settings to the environment. A change is rolled out:
    running workers are replaced a few at a time (`maxUnavailable`) while the others train."""
    checkpoint: CheckpointSpec | None = None
    """Durable checkpoints, from which the job resumes after all workers are gone. Absent: none; the state then exists
    only as long as one worker does."""
    parallelism: ParallelismSpec | None = None
    """Sharded models. Absent: each rank holds the whole model."""
    batch: BatchSpec | None = None
    """Let the ranks choose the batch of a step, and scale the learning rate with it. Absent: the batch is the script's.
    May only change while ``suspend`` is true. Not with ``parallelism.shards``, nor with `numerics="bitwise"`."""
    shares: ShareRule = ShareRule.EQUAL
    """How a global batch is divided between the ranks. Measured: in proportion to their measured speed, so that a slow
    worker delays the others less; the global batch and each sample's weight stay the same. The ranks that hold one copy
    of the model together have equal shares. Not with ``parallelism.shards: all`` or a mesh. May only change while
    ``suspend`` is true."""
    max_share: Annotated[float, Field(ge=1.0)] | None = None
    """With ``shares: Measured``: the most that a rank computes, as a multiple of the equal share. Bounds its memory.
    Absent: 2. May only change while ``suspend`` is true."""
    divergence: DivergenceSpec | None = None
    """How replicas of the model are compared, and what follows where they differ. Absent: every 100 steps, and the job
    fails where no majority of them is equal."""
    suspend: bool = False
    """True: drain all workers at a step boundary and keep the job. Refused if that discards committed steps: see
    ``protectState``."""
    protect_state: bool = True
    """Keep the last copy of the training state. A PodDisruptionBudget refuses the eviction of the last worker that
    holds it, until another one does or a checkpoint was written; ``suspend`` is refused once steps are committed, if
    the job has no ``checkpoint`` or its last save failed. False: neither, for a job whose progress may be lost, or
    whose pods a budget of your own selects (Kubernetes evicts no pod that two budgets select)."""
    backoff_limit: NonNegativeInt = 6
    """Number of retries after failures of the training script. Lost nodes and preemption do not count."""
    loss_limit: PositiveInt = 50
    """The job fails after more than this many times `maxReplicas` workers are lost without a committed step in between:
    to their node, to eviction, to preemption or to a signal. The delay of replacements grows meanwhile."""
    active_deadline_seconds: PositiveInt | None = None
    """Seconds of active (not suspended) time after which the job fails. Absent: no deadline."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Seconds after its end after which the job is deleted. Absent: the job is kept."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods to delete when the job has finished."""
    success_policy: SuccessPolicy = SuccessPolicy.RANK_ZERO
    """Condition for the success of the job. RankZero: the script of rank 0's worker succeeds; the other workers then
    have 60 s to end. AllWorkers: the scripts of all workers succeed, for work after the training loop such as a share
    of an evaluation; one failure fails the job."""
    pending_deadline_seconds: PositiveInt | None = None
    """Seconds that a worker may take from its creation to its start. A later worker is withdrawn and retried after the
    same time while `minReplicas` others run; otherwise the job fails with the pod and the cause in the message. A pod
    that a queue holds back is not late. Absent: no limit; the condition PodsReady names the cause of the wait."""
    max_unavailable: NonNegativeInt = 1
    """Workers replaced at a time after a change of `template`. Where there is room, replacements start first, so that
    this many more pods exist for a moment. 0: running workers keep their template."""
    node_cooldown_seconds: NonNegativeInt = 1800
    """Seconds that new workers avoid a node after a failed pre-flight check, or after three lost workers within 30
    minutes. 0: never."""
    preflight: PreflightSpec | None = None
    """Check each node before a worker trains on it. Absent: no check."""
    managed_by: QualifiedName | None = None
    """The controller that creates the workers. Absent or `elastrain.dev/operator`: this operator. Another value, such
    as `kueue.x-k8s.io/multikueue`: another controller, and this operator ignores the job. May not change."""

    @field_validator("min_replicas", "replicas", "warm_spares")
    @classmethod
    def _sizes_are_ordered(cls, value: int | None, info: ValidationInfo) -> int | None:
        # `info.data` holds the valid fields above; a rule about an invalid field would only repeat its error.
        sizes = {to_camel(name): size for name, size in info.data.items()} | {to_camel(str(info.field_name)): value}
        rule = rules.SIZES[to_camel(str(info.field_name))]
        if value is not None and rule.needs <= sizes.keys() and not rule.holds(sizes):
            raise rule_broken(rule.in_words(sizes), value)
        return value

    @field_validator("parallelism")
    @classmethod
    def _tensor_divides_shards(cls, value: ParallelismSpec | None) -> ParallelismSpec | None:
        if value is not None and value.tensor > 1 and (value.shards == ALL or value.shards % value.tensor):
            raise rule_broken(f"{rules.TENSOR_FITS.words}; it is {value.shards}", value.tensor)
        return value

    @field_validator("parallelism")
    @classmethod
    def _groups_are_whole(cls, value: ParallelismSpec | None, info: ValidationInfo) -> ParallelismSpec | None:
        shape = value.shape if value is not None else None
        if value is None or shape is None or not shape.dimensions:
            return value
        ranks = shape.size
        nproc = info.data.get("nproc_per_node", ranks)  # absent: invalid, which has an error of its own
        if not isinstance(nproc, int) or (nproc % ranks and ranks % nproc):
            rule = rules.SHARDS_FIT if value.mesh is None else rules.MESH_FITS
            raise rule_broken(rule.in_words({"nprocPerNode": nproc}), ranks)
        return value

    @field_validator("batch")
    @classmethod
    def _batch_is_of_whole_models(cls, value: BatchSpec | None, info: ValidationInfo) -> BatchSpec | None:
        parallelism = info.data.get("parallelism")
        if value is not None and parallelism is not None and parallelism.shape != ONE_RANK:
            raise rule_broken(rules.BATCH_IS_OF_WHOLE_MODELS.words, value.model_dump(by_alias=True))
        return value

    @field_validator("shares")
    @classmethod
    def _shares_are_of_replicas(cls, value: ShareRule, info: ValidationInfo) -> ShareRule:
        parallelism = info.data.get("parallelism")
        other = parallelism is not None and (parallelism.shards == ALL or parallelism.mesh is not None)
        if value is ShareRule.MEASURED and other:
            raise rule_broken(rules.SHARES_ARE_OF_REPLICAS.words, value.value)
        return value

    @field_validator("max_share")
    @classmethod
    def _max_share_is_of_measured(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("shares") is ShareRule.EQUAL:
            raise rule_broken(rules.MAX_SHARE_IS_OF_MEASURED.words, value)
        return value

    def rank_settings(self, nproc: int) -> RankSettings:
        """The settings of the ranks, of which each worker has ``nproc``."""
        least = self.min_replicas * nproc
        return RankSettings(
            checkpoint=self.checkpoint,
            **shape_fields(self.shape),
            max_redone_steps=(self.parallelism or ParallelismSpec()).max_redone_steps,
            batch=None if self.batch is None else BatchSettings(**dict(self.batch), least_ranks=least),
            shares=self.shares,
            max_share=self.max_share or MAX_SHARE,
            divergence=self.divergence or DivergenceSpec(),
        )

    @property
    def shape(self) -> Shape | None:
        """Of a replica; None: one copy of the model over all ranks."""
        return Shape() if self.parallelism is None else self.parallelism.shape

    @property
    def shards(self) -> int | Literal["all"]:
        """Ranks of a replica; ``all`` ranks hold one copy together."""
        return ALL if self.shape is None else self.shape.size

    @property
    def group_size(self) -> int:
        """Workers of a replica: of a group that holds one copy of the model together; else 1."""
        nproc = self.nproc_per_node
        return workers_of_a_group(self.shards, nproc) if isinstance(nproc, int) else 1

    @property
    def replica(self) -> str:
        """What is counted as a replica: ``worker`` or ``group``."""
        return "worker" if self.group_size == 1 else "group"

    @property
    def desired_replicas(self) -> int:
        """Desired number of replicas: ``maxReplicas`` if ``replicas`` is absent, 0 while suspended."""
        if self.suspend:
            return 0
        return self.max_replicas if self.replicas is None else self.replicas

    @property
    def ranks_per_worker(self) -> int:
        """``nprocPerNode`` as a number.

        Raises ``AcceleratorUnclear`` (a ``ValueError``) if it is ``auto`` and the template's limits are ambiguous.
        """
        return accelerators.ranks(self.nproc_per_node, trainer_container(self.template), self.accelerator)


def trainer_container(template: dict[str, Any]) -> dict[str, Any]:
    """The training container of ``template``.

    Raises ``ValueError`` with the field's name if the template has no container.
    """
    containers = template.get("spec", {}).get("containers") or []
    if not containers:
        raise ValueError("spec.template.spec.containers: must have at least one container")
    named = [c for c in containers if c.get("name") == names.TRAINER_CONTAINER]
    return dict(named[0] if named else containers[0])
