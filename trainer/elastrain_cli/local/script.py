"""Builds a job from a plain training script, for ``elastrain run train.py``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from elastrain.api import names
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.manifest import InvalidManifest, loads

FIRST, MOST = 2, 8
"""Initial workers, and the largest number for ``elastrain scale``; ``--set`` changes both."""


def job_of(script: Path, arguments: Sequence[str]) -> ElasticTrainingJob:
    """The job that runs ``script`` with ``arguments`` on this machine. Its name is the file's name; its image is
    unused.

    Raises :class:`~elastrain_resource.manifest.InvalidManifest` if the file does not exist.
    """
    if not script.is_file():
        raise InvalidManifest(str(script), ["cannot be read: no such file"])
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:50].rstrip("-")
    container = {
        "name": names.TRAINER_CONTAINER, "image": "this-machine", "command": ["python", script.name, *arguments],
    }  # fmt: skip
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name if name[:1].isalpha() else f"job-{name}".rstrip("-")},
        "spec": {"maxReplicas": MOST, "replicas": FIRST, "template": {"spec": {"containers": [container]}}},
    }
    return loads(yaml.safe_dump(document), source=f"the job for {script}")
