"""The agent's environment, read once and checked. Names are in ``api/names.py``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from elastrain.agent.core.health import Policy
from elastrain.api import names
from elastrain.api.settings import CheckpointSpec, RankSettings, Transport, workers_of_a_group

_NEWER_IMAGE = " (written by the operator: the image's elastrain must not be older than the operator)"


class BadSettings(ValueError):
    """A variable is missing or its value is invalid; the message names it and the rule."""


class Settings(BaseModel):
    """An agent's settings, without those of etcd (see ``EtcdConfig``). Field aliases are the environment variables."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    namespace: str = Field("default", alias=names.ENV_NAMESPACE)
    job: Annotated[str, Field(alias=names.ENV_JOB, min_length=1)]
    job_uid: Annotated[str, Field(alias=names.ENV_JOB_UID, min_length=1)]
    worker: Annotated[str, Field(alias=names.ENV_WORKER, min_length=1)]
    node: str = Field("", alias=names.ENV_NODE)
    pod: str = Field("", alias=names.ENV_POD_UID)
    address: str = Field(default_factory=socket.gethostname, alias=names.ENV_ADDRESS)
    nproc: Annotated[int, Field(alias=names.ENV_NPROC, ge=1, le=256)] = 1
    lease_ttl: Annotated[int, Field(alias=names.ENV_LEASE_TTL, ge=2)] = names.DEFAULT_LEASE_TTL
    termination_log: Path = Field(Path(names.DEFAULT_TERMINATION_LOG), alias=names.ENV_TERMINATION_LOG)
    drain_timeout: Annotated[float, Field(alias=names.ENV_DRAIN_TIMEOUT, gt=0)] = 25.0
    """Seconds from SIGTERM until running ranks are killed. Set it a few seconds below the pod's grace period."""
    fork_ranks: Annotated[Literal["on", "off"], Field(alias=names.ENV_FORK_RANKS)] = "on"
    """Checked here; used by ``plan_start``, which runs before this module and other heavy ones are imported."""
    stuck_timeout: Annotated[float, Field(alias=names.ENV_STUCK_TIMEOUT, ge=0)] = Policy().stuck_timeout
    stragglers: Literal["name", "exclude"] = Field("name", alias=names.ENV_STRAGGLERS)
    min_timeout: Annotated[float, Field(alias=names.ENV_MIN_TIMEOUT, gt=0)] = Policy().min_timeout
    written: Annotated[Json[RankSettings], Field(alias=names.ENV_RANK_SETTINGS)] = RankSettings()
    """By the operator or local mode. A field that it leaves out can have a variable of its own, below."""
    group: Annotated[int, Field(alias=names.ENV_GROUP, ge=0)] = 0
    place: Annotated[int, Field(alias=names.ENV_PLACE, ge=0)] = 0
    checkpoint: Annotated[Json[CheckpointSpec] | None, Field(alias=names.ENV_CHECKPOINT)] = None
    audit_dir: Annotated[str | None, Field(alias=names.ENV_AUDIT_DIR)] = None
    backend: Annotated[
        Transport, BeforeValidator(lambda text: text.strip().lower()), Field(alias=names.ENV_BACKEND)
    ] = "auto"

    @field_validator("written")
    @classmethod
    def _groups_are_whole(cls, written: RankSettings, info: ValidationInfo) -> RankSettings:
        shards, nproc = written.shards, info.data.get("nproc", written.shards)
        if shards != "all" and nproc % shards and shards % nproc:
            raise ValueError(f"shards ({shards}) must divide {names.ENV_NPROC} ({nproc}), or be a multiple of it")
        return written

    @field_validator("place")
    @classmethod
    def _place_is_in_the_group(cls, place: int, info: ValidationInfo) -> int:
        size = workers_of_a_group(info.data["written"].shards, info.data["nproc"]) if "written" in info.data else place
        if place > size - 1:
            raise ValueError(f"must be less than {size}, the workers of a group")
        return place

    @property
    def group_size(self) -> int:
        """Workers of a group; 1: each worker has whole groups, or replicas."""
        return workers_of_a_group(self.written.shards, self.nproc)

    @property
    def ranks(self) -> RankSettings:
        """The settings of the ranks."""
        own = RankSettings.model_fields.keys() & self.model_fields_set - self.written.model_fields_set
        return self.written.model_copy(update={name: getattr(self, name) for name in own})

    @property
    def health(self) -> Policy:
        """The reactions to hanging ranks, stragglers and a job below its minimum."""
        return Policy(self.stuck_timeout, self.stragglers == "exclude", self.min_timeout)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; empty variables count as absent. Raises :class:`BadSettings`."""
        try:
            return cls.model_validate({k: v for k, v in environment.items() if k.startswith("ELASTRAIN_") and v})
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"
                + ("" if e["type"] == "missing" else f", got {e['input']!r}")
                + (_NEWER_IMAGE if e["loc"][0] == names.ENV_RANK_SETTINGS else "")
                for e in error.errors()
            ]
            raise BadSettings("environment of the agent: " + "; ".join(lines)) from None
