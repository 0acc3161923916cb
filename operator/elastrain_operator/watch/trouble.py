"""Why a pod does not start, by its status. Pure; parses raw objects."""

from __future__ import annotations

import re

from elastrain_operator.facts import Trouble
from elastrain_operator.raw import Raw, mapping, objects, text

CREATING_PATIENCE = 60.0
"""Seconds after which a container that is still being created is reported; the pod's status shows no cause."""

_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME = re.compile(r"persistent ?volume|volume node affinity|volume binding|storageclass", re.IGNORECASE)


def trouble(pod_name: str, status: Raw, scheduled: Raw) -> Trouble | None:
    """The most specific reason; None: there is no trouble (yet). ``scheduled``: the condition PodScheduled."""
    if scheduled.get("status") == "False":
        told = text(scheduled.get("message")) or text(scheduled.get("reason")) or "no reason given"
        reason = "VolumeFailed" if _VOLUME.search(told) else text(scheduled.get("reason")) or "Unschedulable"
        return Trouble(reason, f"pod {pod_name}: {told}")
    creating = None
    for container in [*objects(status.get("initContainerStatuses")), *objects(status.get("containerStatuses"))]:
        waiting = mapping(mapping(container.get("state")).get("waiting"))
        if not waiting:
            continue
        found = _waiting(pod_name, container, waiting)
        if not found.patience:
            return found
        creating = creating or found
    return creating


def _waiting(pod_name: str, container: Raw, waiting: Raw) -> Trouble:
    """Why one container does not run."""
    reason = text(waiting.get("reason"))
    where = f"pod {pod_name}, container {text(container.get('name'))}"
    told = text(waiting.get("message")) or reason
    if reason in _IMAGE:
        return Trouble("ImagePullFailed", f"{where}: image {text(container.get('image')) or '?'}: {reason}: {told}")
    if reason in _CONFIG:
        return Trouble("ContainerConfigFailed", f"{where}: {reason}: {told}")
    if reason == "CrashLoopBackOff":
        return Trouble("ContainerCrashes", f"{where}: {told}")
    return Trouble(
        "ContainerNotCreated",
        f"{where}: not created {CREATING_PATIENCE:.0f} s after the pod, often because a volume cannot be mounted; "
        f"`kubectl describe pod {pod_name}` shows the node's events",
        patience=CREATING_PATIENCE,
    )
