"""The manifest of one run: the user's, without what belongs to a cluster or to a long training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from elastrain_resource.job import ElasticTrainingJob, trainer_container
from elastrain_resource.manifest import loads

_LEFT_OUT = ("warmSpares", "activeDeadlineSeconds", "checkpoint", "preflight", "batch", "suspend", "accelerator")
"""Fields of the spec. The user's checkpoints are neither read nor written; ``batch`` lets steps differ on purpose."""


def of_run(job: ElasticTrainingJob, directory: Path, *, workers: int, most: int, checkpoint: Path | None = None) -> Any:
    """``job`` with ``workers`` workers in ``directory``, up to ``most``."""
    document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    document.pop("status", None)
    spec = document["spec"]
    for name in _LEFT_OUT:
        spec.pop(name, None)
    spec |= {"minReplicas": 1, "maxReplicas": most, "replicas": workers, "backoffLimit": 0}
    # A run must show a difference between ranks; the job's own comparison would repair it, or end the job.
    spec["divergence"] = {"everySteps": 0}
    if checkpoint is not None:
        spec["checkpoint"] = {"path": str(checkpoint)}
    trainer_container(spec["template"])["workingDir"] = str(directory)
    return loads(yaml.safe_dump(document), source="the job of this run")
