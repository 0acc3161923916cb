"""Defaults of a worker's pod: shared memory, tolerations, spread. Pure; for ``manifest.py``.

Each applies only if the template does not set it; ``template.py`` has already refused invalid shapes. What is *not*
set, and why, is in ``docs/decisions/0011-the-manifest.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elastrain.api import names
from elastrain.api.names import DO_NOT_DISRUPT, SAFE_TO_EVICT
from elastrain_operator.allocation.resources import quantity
from elastrain_resource.accelerators import limits_of

SHM_PATH = "/dev/shm"  # noqa: S108 - the path of POSIX shared memory
SHM_VOLUME = "elastrain-shm"
SHM_SHARE = 2
"""The size of ``/dev/shm`` is the memory limit divided by this, as is Linux' default for a tmpfs."""


def shared_memory(body: dict[str, Any], trainer: dict[str, Any]) -> None:
    """Mount a volume in memory at ``/dev/shm`` of the trainer container, unless the template mounts its own there."""
    mounts, volumes = _objects(trainer.get("volumeMounts")), _objects(body.get("volumes"))
    if mounts is None or volumes is None:
        return
    if any(str(m.get("mountPath")).rstrip("/") == SHM_PATH for m in mounts):
        return
    size = _share_of_limit(trainer)
    volume = {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}
    body["volumes"] = [*volumes, volume]
    trainer["volumeMounts"] = [*mounts, {"name": SHM_VOLUME, "mountPath": SHM_PATH}]


def tolerate(body: dict[str, Any], devices: Iterable[str]) -> None:
    """Permit nodes that are reserved for the pod's ``devices`` (extended resources): by convention they have a taint
    named after the resource.

    The toleration is that of Kubernetes' admission plugin ExtendedResourceToleration, which few clusters enable. A
    template that has a toleration for the key, or for all keys, keeps its own.
    """
    given = _objects(body.get("tolerations"))
    if given is None:
        return
    tolerated = [t.get("key") for t in given]
    ours = [d for d in devices if d not in tolerated and None not in tolerated]
    if ours:
        added = [{"key": d, "operator": "Exists", "effect": "NoSchedule"} for d in ours]
        body["tolerations"] = [*given, *added]


def spread(body: dict[str, Any], job_uid: str) -> None:
    """Prefer different hosts, so that a lost node costs one worker.

    For CPU-only workers: spreading workers with accelerators would leave no whole node for jobs that need one.
    """
    if "topologySpreadConstraints" in body:
        return
    body["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {names.LABEL_JOB_UID: job_uid}},
        }
    ]


def last_words(body: dict[str, Any], trainer: dict[str, Any]) -> None:
    """Have the kubelet report the last lines of a failed container that is not the ``trainer``: the operator quotes
    them."""
    for container in [*body["containers"], *(body.get("initContainers") or [])]:
        if container is not trainer:
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def resolve_services(body: dict[str, Any]) -> None:
    """Let a worker in the host's network find etcd: the node's resolver, the default there, knows no Service."""
    if body.get("hostNetwork") and body.get("dnsPolicy") is None:
        body["dnsPolicy"] = "ClusterFirstWithHostNet"


def apart(body: dict[str, Any], job_uid: str) -> None:
    """Prefer, for a warm spare, a node without any worker of its job: most losses that it covers are losses of a node.

    A template with pod anti-affinity keeps its own.
    """
    affinity = body.get("affinity") or {}
    if "podAntiAffinity" in affinity:
        return
    term = {"labelSelector": {"matchLabels": {names.LABEL_JOB_UID: job_uid}}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    body["affinity"] = affinity | {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
    }


def together(body: dict[str, Any], labels: dict[str, str], topology: str) -> None:
    """Prefer nodes on which the label ``topology`` has the same value as for other pods with these ``labels``."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": topology}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    body["affinity"] = (body.get("affinity") or {}) | {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
    }


def _objects(value: Any) -> list[dict[str, Any]] | None:
    """A list of objects, empty if absent; None for anything else."""
    if value is None:
        return []
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def _share_of_limit(trainer: dict[str, Any]) -> str | None:
    """In whole MiB, rounded down; None without a readable limit."""
    try:
        limit = quantity("memory", str(limits_of(trainer).get("memory", "")))
    except ValueError:
        return None
    return f"{max(limit // SHM_SHARE // 2**20, 1)}Mi"


def decides_evictions(template: Mapping[str, Any]) -> bool:
    """Whether the job's template decides by annotations of its own."""
    own = (template.get("metadata") or {}).get("annotations") or {}
    return SAFE_TO_EVICT in own or DO_NOT_DISRUPT in own


def evictable(*, keep: bool) -> dict[str, str | None]:
    """Annotations of a worker; None: absent. ``keep``: its node must not be removed."""
    return {SAFE_TO_EVICT: "false" if keep else "true", DO_NOT_DISRUPT: "true" if keep else None}
