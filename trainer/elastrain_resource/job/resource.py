"""The complete resource."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from elastrain.api.base import ApiModel
from elastrain_resource.job.embedded import AsDict, JobMeta
from elastrain_resource.job.spec import JobSpec
from elastrain_resource.job.status import JobStatus


class ElasticTrainingJob(ApiModel):
    """A data-parallel training job whose workers may join, leave and be lost during training."""

    api_version: Literal["elastrain.dev/v1alpha1"]
    kind: Literal["ElasticTrainingJob"]
    metadata: Annotated[dict[str, Any], AsDict(JobMeta)]
    spec: JobSpec
    """The desired state. Written by users; the operator only reads it."""
    status: JobStatus | None = None
    """The observed state. Written by the operator only."""

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", "default"))
