"""The example's own manifest, changed only where a cluster of this size asks for it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import yaml

from harness.commands import CACHE, CLUSTER, ROOT

EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples/01-digits/job.yaml").read_text())
STEPS_PER_EPOCH = 23
FOREVER = 100_000
"""Epochs of a job that is not meant to end by itself."""


def images() -> dict[str, str]:
    """Names of the images that ``e2e/cluster/images.sh`` has put onto the nodes."""
    lines = (CACHE / f"{CLUSTER}-images.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def digits(
    name: str,
    *,
    epochs: int = FOREVER,
    step_seconds: float = 0.1,
    command: list[str] | None = None,
    gpus: int = 0,
    place: str = "",
    **spec: Any,
) -> dict[str, Any]:
    """examples/01-digits/job.yaml with our image and the namespace's claim as its volume.

    ``gpus``: of each worker; tests that run side by side share four. ``place``: as of :func:`manifest_of`. ``spec``
    replaces fields of the job's spec.
    """
    manifest = deepcopy(EXAMPLE)
    manifest["metadata"]["name"] = name
    manifest["spec"] |= spec
    pod = manifest["spec"]["template"]["spec"]
    trainer = pod["containers"][0]
    trainer["image"] = images()["TRAINER_IMAGE"]
    trainer["resources"]["limits"] = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    values = {"EPOCHS": str(epochs), "STEP_SECONDS": str(step_seconds)}
    trainer["env"] = [{**e, "value": values.get(e["name"], e["value"])} for e in trainer["env"]]
    trainer["env"].append({"name": "ELASTRAIN_AUDIT_DIR", "value": "/audit"})
    trainer["volumeMounts"] = [
        {"name": "checkpoints", "mountPath": "/checkpoints", "subPath": f"{place}checkpoints"},
        {"name": "checkpoints", "mountPath": "/audit", "subPath": f"{place}audit"},
    ]
    if command:
        trainer["command"] = command
    pod["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}}]
    pod["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_apart(name)]}}
    pod["terminationGracePeriodSeconds"] = 15
    return manifest


def manifest_of(folder: str, *, values: dict[str, str], place: str = "", gpus: int = 1, **spec: Any) -> dict[str, Any]:
    """The manifest of another example, with our image and the namespace's claim as its volume.

    ``values``: of its container's environment. ``place``: the folder of the claim, ending in ``/``, that is its own
    where several jobs share one. ``gpus``: of each worker. ``spec`` replaces fields of the job's spec.
    """
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / folder / "job.yaml").read_text())
    manifest["spec"] |= spec
    pod = manifest["spec"]["template"]["spec"]
    trainer = pod["containers"][0]
    trainer["image"] = images()["TRAINER_IMAGE"]
    if gpus:
        trainer["resources"]["limits"] = {"nvidia.com/gpu": str(gpus)}
    trainer["env"] = [{**e, "value": values.get(e["name"], e["value"])} for e in trainer["env"]]
    trainer["env"].append({"name": "ELASTRAIN_AUDIT_DIR", "value": "/audit"})
    # As torchrun does it: threads of many processes on few cores wait for each other at the end of each operation.
    trainer["env"].append({"name": "OMP_NUM_THREADS", "value": "1"})
    mounts = [{**m, "name": "shared", "subPath": f"{place}checkpoints"} for m in trainer.get("volumeMounts", [])]
    trainer["volumeMounts"] = [*mounts, {"name": "shared", "mountPath": "/audit", "subPath": f"{place}audit"}]
    pod["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    pod["terminationGracePeriodSeconds"] = 15
    return manifest


def _apart(job: str) -> dict[str, Any]:
    """Workers of a job prefer nodes of their own, so that a stopped node does not take all of them."""
    selector = {"matchLabels": {"elastrain.dev/job": job}}
    return {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}}
