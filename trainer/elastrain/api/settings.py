"""The settings of a job's ranks, which travel as one value: resource → worker's environment → agent → ``Welcome``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypedDict

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from elastrain.api import names, rules
from elastrain.api.base import ApiModel, NonNegativeInt, PositiveInt, rule_broken
from elastrain.api.shape import MeshDimension, Shape

Transport = Literal["auto", "nccl", "gloo", "tcp"]
ALL: Literal["all"] = "all"
Shards = PositiveInt | Literal["all"]


class ShapeFields(TypedDict):
    """The fields of :class:`RankSettings` that tell ranks the shape of a replica."""

    shards: Shards
    tensor: int
    mesh: tuple[MeshDimension, ...]


def shape_fields(shape: Shape | None) -> ShapeFields:
    """``shape``: as of :attr:`RankSettings.shape`."""
    if shape is None:
        return ShapeFields(shards=ALL, tensor=1, mesh=())
    shards, tensor = shape.short or (shape.size, 1)
    return ShapeFields(shards=shards, tensor=tensor, mesh=() if shape.short else shape.mesh)


def workers_of_a_group(shards: Shards, nproc: int) -> int:
    """Workers that hold one copy of the model together, with ``nproc`` ranks each; 1: a worker has whole copies."""
    return 1 if shards == ALL else max(shards // nproc, 1)


def _checked(path: str) -> str:
    for rule, holds in rules.CHECKPOINT_PATHS:
        if not holds(path):
            secret = rule is rules.NO_CREDENTIALS_IN_PATH
            raise rule_broken(rule.words, "(hidden)" if secret else path)
    return path


class Interval(ApiModel):
    """When checkpoints are written."""

    model_config = ConfigDict(strict=True)

    every_steps: PositiveInt | None = None
    """Save after this many committed steps."""
    every_seconds: PositiveInt | None = None
    """Save when this many seconds have passed since the last checkpoint."""


class ArchiveSpec(Interval):
    """A second durable place. Each checkpoint of `checkpoint.path` is copied to it in the background; with an interval
    of its own, those that are due here."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Directory or URL, as `checkpoint.path`. May only change while ``suspend`` is true."""
    keep: PositiveInt = 2
    """Number of complete checkpoints to keep here."""

    _check_path = field_validator("path")(_checked)


class CheckpointSpec(Interval):
    """Durable checkpoints, from which a job resumes after all workers are gone. In-process rescales do not need
    them."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Directory on a volume that every worker mounts at this path (local mode: relative to the manifest), or the URL of
    an object store, such as `s3://bucket/prefix` or `gs://bucket/prefix`. Credentials and endpoint of the store come
    from the trainer container's environment or service account. May only change while ``suspend`` is true."""
    every_steps: PositiveInt | None = None
    """Save after this many committed steps. If ``everySeconds`` is absent too, only a drain saves."""
    keep: PositiveInt = 2
    """Number of complete checkpoints to keep; a newer complete checkpoint deletes the oldest."""
    archive: ArchiveSpec | None = None
    """A second durable place, such as an object store beside a volume. Absent: none."""

    _check_path = field_validator("path")(_checked)


class LearningRate(StrEnum):
    """How the learning rate follows the batch of a step."""

    ADA_SCALE = "AdaScale"
    """Times the gain of AdaScale SGD, which the noise scale gives: from 1 to the batch over the script's. For SGD."""
    SQUARE_ROOT = "SquareRoot"
    """Times the square root of the batch over the script's. For Adam and its relatives."""
    LINEAR = "Linear"
    """Times the batch over the script's."""
    UNCHANGED = "Unchanged"


class BatchSpec(ApiModel):
    """Bounds within which the ranks choose the batch of a step: by *goodput*, the samples per second times the progress
    that a sample makes in a batch of that size."""

    min: PositiveInt
    """Samples of the smallest batch. The script's `global_batch_size` must be between `min` and `max`; a step takes one
    or several whole batches of it."""
    max: PositiveInt
    """Samples of the largest batch."""
    learning_rate: LearningRate
    """How the learning rate follows the batch, as a factor of the script's rate in a step of k batches of the script:
    AdaScale (1 to k, by the measured noise, for SGD), SquareRoot (√k, for Adam and its relatives), Linear (k) or
    Unchanged (1). Schedulers stay the script's."""

    @field_validator("max")
    @classmethod
    def _bounds_are_ordered(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min", value)
        if value < least:
            raise rule_broken(rules.BATCH_BOUNDS.in_words({"batch.min": least}), value)
        return value


class BatchSettings(BatchSpec):
    """``spec.batch`` as the ranks need it."""

    least_ranks: PositiveInt
    """Ranks of the job's smallest size: a rank's part of the script's batch is never greater than with so many, and no
    loop body gets more samples than that."""


MAX_SHARE = 2.0
"""Of the equal share: most that a rank computes of a batch, by default."""


class ShareRule(StrEnum):
    """How a global batch is divided between the ranks."""

    EQUAL = "Equal"
    """In equal parts, up to one sample."""
    MEASURED = "Measured"
    """In proportion to the speed of the ranks, as measured: a slow rank computes fewer samples."""


class WithoutMajority(StrEnum):
    """What follows where replicas differ and no majority of them is equal."""

    FAIL = "Fail"
    """The job fails with a message that names the entries and the ranks."""
    RESUME = "Resume"
    """The job goes back to the newest checkpoint from before the difference; it fails if that does not help."""


class DivergenceSpec(ApiModel):
    """Ranks that hold the same part of the model compare parameters, buffers and optimizer state, to the bit. A
    minority takes the state of the majority from a peer, and training continues."""

    every_steps: NonNegativeInt = 100
    """Committed steps between two comparisons; also soon after each rescale and before a loop ends. 0: never, for
    machines that round differently. May only change while ``suspend`` is true."""
    without_majority: WithoutMajority = WithoutMajority.FAIL
    """Where no majority has the same state, as with two replicas. Fail: the job fails with a message that names the
    entries and the ranks. Resume: it goes back, once, to the newest checkpoint from before the difference; without one
    it fails. May only change while ``suspend`` is true."""


class RankSettings(ApiModel):
    """Written by the operator and by local mode, validated by the worker's agent, read by its ranks.

    A default is not written, so a later version must not change it. An agent refuses a field that it does not know: a
    newer operator wrote it, and training without it would differ from the manifest.
    """

    model_config = ConfigDict(strict=True)

    checkpoint: CheckpointSpec | None = None
    """``spec.checkpoint``; local mode makes the path absolute. Absent: no checkpoints."""
    audit_dir: Annotated[str, Field(min_length=1)] | None = None
    """Directory of the audit logs. Absent: none are written."""
    backend: Transport = "auto"
    """The transport of gradients that lie on devices."""
    shards: Shards = 1
    """Ranks that hold one copy of the model together."""
    tensor: PositiveInt = 1
    """Those of them that compute each layer together, in a mesh that ``spec.parallelism.tensor`` can spell."""
    mesh: tuple[MeshDimension, ...] = ()
    """``spec.parallelism.mesh``, unless ``shards`` and ``tensor`` say it: then earlier images can read it."""
    max_redone_steps: NonNegativeInt = 20
    """``spec.parallelism.maxRedoneSteps``."""
    batch: BatchSettings | None = None
    """``spec.batch``. Absent: the batch is the script's."""
    shares: ShareRule = ShareRule.EQUAL
    """``spec.shares``."""
    max_share: Annotated[float, Field(ge=1.0)] = MAX_SHARE
    """``spec.maxShare``."""
    divergence: DivergenceSpec = DivergenceSpec()
    """``spec.divergence``."""

    @model_validator(mode="after")
    def _ranks_are_those_of_the_mesh(self) -> RankSettings:
        if self.mesh and (self.tensor != 1 or Shape.from_mesh(self.mesh).size != self.shards):
            raise ValueError(f"mesh has {Shape.from_mesh(self.mesh).size} ranks, and shards is {self.shards}")
        return self

    @property
    def shape(self) -> Shape | None:
        """Of a replica; None: one copy of the model over all ranks."""
        if self.mesh:
            return Shape.from_mesh(self.mesh)
        return None if self.shards == ALL else Shape.of(self.shards, self.tensor)

    def to_environment(self) -> dict[str, str]:
        """The variables for a worker's agent."""
        values = {names.ENV_RANK_SETTINGS: self.model_dump_json(by_alias=True, exclude_defaults=True)}
        if self.checkpoint is not None:
            values[names.ENV_CHECKPOINT] = self.checkpoint.model_dump_json(by_alias=True, exclude_none=True)
        return values
