"""Builds the manifest of a plain training script, for ``elastrain submit train.py``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from elastrain.api import names

MAX_SCRIPT_BYTES = 900_000
"""Bytes of a script; a ConfigMap holds 1 MiB, metadata included."""
_SCRIPT_DIRECTORY = "/opt/elastrain/script"


class BadScript(ValueError):
    """The script cannot be sent; the message names the option or the file."""


def job_name(script: PurePath) -> str:
    """A valid Kubernetes name from the file's name: ``train_gpt2.py`` becomes ``train-gpt2``.

    Raises :class:`BadScript` if the file's name has no usable character.
    """
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:50].rstrip("-")
    if not name or not name[0].isalpha():
        raise BadScript(f"{script}: the file name yields no valid job name; set --name")
    return name


def compose(
    name: str,
    *,
    script: str,
    file: str,
    arguments: Sequence[str],
    image: str,
    sizes: tuple[int, int, int | None],
    resources: Mapping[str, str],
    nproc_per_node: int = 1,
) -> dict[str, Any]:
    """The job that runs ``script`` (its text) with ``arguments``. The ConfigMap :func:`files_name` holds the script as
    ``file``.

    ``sizes``: minReplicas, maxReplicas, replicas. ``resources``: limits of each worker by name. Raises
    :class:`BadScript` if the script exceeds the size of a ConfigMap.
    """
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise BadScript(
            f"{file}: has {len(script.encode()):,} bytes, at most {MAX_SCRIPT_BYTES:,} can travel with the job; "
            "put it into the image and write a manifest (elastrain submit job.yaml)"
        )
    smallest, largest, desired = sizes
    container: dict[str, Any] = {
        "name": names.TRAINER_CONTAINER,
        "image": image,
        "command": ["python", f"{_SCRIPT_DIRECTORY}/{file}", *arguments],
        "volumeMounts": [{"name": "script", "mountPath": _SCRIPT_DIRECTORY, "readOnly": True}],
    }
    if resources:
        container["resources"] = {"limits": dict(resources)}
    spec: dict[str, Any] = {"minReplicas": smallest, "maxReplicas": largest}
    if desired is not None:
        spec["replicas"] = desired
    if nproc_per_node != 1:
        spec["nprocPerNode"] = nproc_per_node
    spec["template"] = {
        "spec": {
            "containers": [container],
            "volumes": [{"name": "script", "configMap": {"name": files_name(name)}}],
        }
    }
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}


def files_name(job: str) -> str:
    """The ConfigMap with the script of ``job``."""
    return f"{job}-script"
