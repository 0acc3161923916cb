"""Whether a job's checkpoints outlive its pods, by the URL or the volumes of its template. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from elastrain_resource.job import JobSpec, trainer_container

_ENDS_WITH_POD = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
"""Volume sources that end with their pod, or that no worker can write to."""

_ENDS_WITH_PROCESS = ("memory",)
_DIRECTORY = ("file", "local")
"""Schemes of URLs that mean a directory."""


def problem(spec: JobSpec) -> str:
    """Why ``spec.checkpoint.path`` does not outlive a worker; empty: it does, or the job has no
    checkpoints. A mount that a webhook adds to the pods is not seen."""
    if spec.checkpoint is None:
        return ""
    scheme, separator, path = spec.checkpoint.path.rpartition("://")
    if scheme in _ENDS_WITH_PROCESS:
        return f"spec.checkpoint.path {spec.checkpoint.path} ends with its process; name a volume or an object store"
    return "" if separator and scheme not in _DIRECTORY else _volume_problem(spec, path)  # an object store is durable


def _volume_problem(spec: JobSpec, path: str) -> str:
    try:
        trainer = trainer_container(spec.template)
        mount = _mount(trainer, path)
        volumes = {v.get("name"): v for v in spec.template["spec"].get("volumes") or []}
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""  # no valid pod: the API server refuses it, and PodsReady reports it
    where = f"spec.checkpoint.path {path} lies on"
    end = "checkpoints there end with their worker; mount a volume that outlives it (docs: volume)"
    if mount is None:
        return f"{where} no volumeMount of container {trainer.get('name')}: {end}"
    source = next((kind for kind in _ENDS_WITH_POD if kind in volumes.get(mount.get("name"), {})), None)
    if source:
        return f"{where} volume {mount.get('name')} of type {source}: {end}"
    return ""


def _mount(container: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The innermost mount above ``path``; None: none, or the path is relative."""
    wanted = PurePosixPath(path)
    mounts = [m for m in container.get("volumeMounts") or [] if wanted.is_relative_to(str(m["mountPath"]))]
    return max(mounts, key=lambda m: len(PurePosixPath(m["mountPath"]).parts), default=None)
