"""The pre-flight check of a worker's pod, and the nodes that the pod avoids. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from elastrain.api import names
from elastrain_operator.pod.defaults import SHM_PATH
from elastrain_resource.job import PreflightSpec

_COPIED = ("image", "imagePullPolicy", "resources", "securityContext", "env", "envFrom")
"""Fields that the check copies from the trainer container: the same image, user and devices. (Kubernetes reuses the
devices of an init container for the next containers, so they are not needed twice.)"""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def check_first(body: dict[str, Any], trainer: dict[str, Any], wanted: PreflightSpec | None, accelerators: int) -> None:
    """Put the pre-flight check before the template's own init containers, which may take long.

    ``trainer`` is the template's container with its shared memory. ``accelerators``: the required number, 0 for
    CPU-only workers.
    """
    if wanted is None:
        return
    command = [*names.PREFLIGHT, f"--accelerators={accelerators}", f"--timeout={wanted.timeout_seconds}"]
    if wanted.min_bandwidth is not None:
        command.append(f"--min-bandwidth={wanted.min_bandwidth}")
    mounts = trainer.get("volumeMounts")
    if wanted.pairs is not None:
        command.append(f"--pairs-wait={wanted.pairs.wait_seconds}")
    shared = [m for m in mounts if _at(m) == SHM_PATH] if isinstance(mounts, list) else []
    check = {
        "name": names.PREFLIGHT_CONTAINER,
        **{k: deepcopy(trainer[k]) for k in _COPIED if k in trainer},
        "command": command,
        "volumeMounts": deepcopy(shared),
        "terminationMessagePath": names.DEFAULT_TERMINATION_LOG,
        "terminationMessagePolicy": "File",
    }
    body["initContainers"] = [check, *(body.get("initContainers") or [])]


def let_meet(body: dict[str, Any], trainer: dict[str, Any], wanted: PreflightSpec | None, credentials: str) -> None:
    """Let the check find other workers' checks if pairs are requested: etcd and the names that the agent gets.

    ``trainer`` is the rendered container; ``credentials``: its mount path of the etcd credentials.
    """
    if wanted is None or wanted.pairs is None:
        return
    check = body["initContainers"][0]
    check["env"] = deepcopy(trainer["env"])
    check["volumeMounts"] += [deepcopy(m) for m in trainer.get("volumeMounts") or [] if _at(m) == credentials]


def keep_off(body: dict[str, Any], nodes: Iterable[str]) -> None:
    """Keep the pod off ``nodes`` (names), in addition to the template's node affinity.

    By the node's name, not by its hostname label, which may differ. A field selector has one value, so each node is a
    requirement of its own; terms are alternatives, so each term gets all of them. The API server refuses an affinity of
    an invalid shape, so it is left unchanged.
    """
    refused = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    affinity = body.get("affinity") or {}
    nodes_wanted = _inside(affinity, "nodeAffinity")
    required = _inside(nodes_wanted, _REQUIRED)
    if not refused or nodes_wanted is None or required is None:
        return
    terms = required.get("nodeSelectorTerms") or [{}]
    if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
        return
    restricted = [{**t, "matchFields": [*(t.get("matchFields") or []), *refused]} for t in terms]
    body["affinity"] = affinity | {
        "nodeAffinity": nodes_wanted | {_REQUIRED: required | {"nodeSelectorTerms": restricted}}
    }


def _inside(value: Any, field: str) -> dict[str, Any] | None:
    """The object in a field of an object, empty if absent; None for any other shape."""
    found = (value.get(field) or {}) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None


def _at(mount: Any) -> str:
    return str(mount.get("mountPath")).rstrip("/") if isinstance(mount, dict) else ""
