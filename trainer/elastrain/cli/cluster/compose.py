"""A manifest from a plain training script: what ``elastrain submit train.py`` sends. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from elastrain.api import names

MAX_SCRIPT_BYTES = 900_000
"""A ConfigMap holds one mebibyte, its metadata included."""
_SCRIPT_DIRECTORY = "/opt/elastrain/script"


class BadScript(ValueError):
    """The script cannot be sent; the message names the option or the file."""


def job_name(script: PurePath) -> str:
    """A name that Kubernetes takes, from the file's: ``train_gpt2.py`` becomes ``train-gpt2``.

    Raises :class:`BadScript`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:50].rstrip("-")
    if not name or not name[0].isalpha():
        raise BadScript(f"{script}: no name for a job can be made of it; give one by --name")
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
    """The job that runs ``script`` (its text) with ``arguments``, from a ConfigMap :func:`files_name` that holds it as
    ``file``.

    ``sizes``: minReplicas, maxReplicas, replicas. ``resources``: limits of each worker by name. Raises
    :class:`BadScript` for a script that a ConfigMap cannot hold.
    """
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise BadScript(
            f"{file}: has {len(script.encode()):,} bytes, at most {MAX_SCRIPT_BYTES:,} can travel with the job; "
            "put it into the image and write a manifest (elastrain submit job.yaml)"
        )
    smallest, largest, wanted = sizes
    container: dict[str, Any] = {
        "name": names.TRAINER_CONTAINER,
        "image": image,
        "command": ["python", f"{_SCRIPT_DIRECTORY}/{file}", *arguments],
        "volumeMounts": [{"name": "script", "mountPath": _SCRIPT_DIRECTORY, "readOnly": True}],
    }
    if resources:
        container["resources"] = {"limits": dict(resources)}
    spec: dict[str, Any] = {"minReplicas": smallest, "maxReplicas": largest}
    if wanted is not None:
        spec["replicas"] = wanted
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
