"""The settings of a job's ranks, which travel as one value: resource → worker's environment → agent → ``Welcome``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from elastrain.api import names, rules
from elastrain.api.base import ApiModel, PositiveInt, rule_broken

Transport = Literal["auto", "nccl", "tcp"]


class CheckpointSpec(ApiModel):
    """Durable checkpoints, from which a job resumes after all workers are gone. In-process rescales do not need
    them."""

    model_config = ConfigDict(strict=True)

    path: Annotated[str, Field(min_length=1)]
    """Directory on a volume that every worker mounts at this path (local mode: relative to the manifest). May only
    change while ``suspend`` is true."""
    every_steps: PositiveInt | None = None
    """Save after this many committed steps. If ``everySeconds`` is absent too, only a drain saves."""
    every_seconds: PositiveInt | None = None
    """Save when this many seconds have passed since the last checkpoint."""
    keep: PositiveInt = 2
    """Number of complete checkpoints to keep; a newer complete checkpoint deletes the oldest."""

    @field_validator("path")
    @classmethod
    def _path_says_where(cls, path: str) -> str:
        if not path.startswith(("/", ".")):
            raise rule_broken(rules.CHECKPOINT_PATH.words, path)
        return path


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
    shards: PositiveInt = 1
    """``spec.parallelism.shards``: ranks that hold one copy of the model together."""

    def to_environment(self) -> dict[str, str]:
        """The variables for a worker's agent."""
        values = {names.ENV_RANK_SETTINGS: self.model_dump_json(by_alias=True, exclude_defaults=True)}
        if self.checkpoint is not None:
            values[names.ENV_CHECKPOINT] = self.checkpoint.model_dump_json(by_alias=True, exclude_none=True)
        return values
