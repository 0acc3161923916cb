"""Nodes that are fit to train: the pre-flight check of a worker's pod, and the nodes that it keeps off. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from elastrain.api import names
from elastrain.api.job import PreflightSpec
from elastrain_operator.pod.defaults import SHM_PATH

_COPIED = ("image", "imagePullPolicy", "resources", "securityContext", "env", "envFrom")
"""What the check has of the trainer container: the same image, user and devices. (Kubernetes hands the devices of an
init container on to those after it: they are not needed twice.)"""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def check_first(body: dict[str, Any], trainer: dict[str, Any], wanted: PreflightSpec | None, accelerators: int) -> None:
    """Put the pre-flight check before the template's own init containers, which may take long.

    ``trainer`` is the container as the template has it, with its shared memory. ``accelerators``: how many there must
    be, 0 for CPU-only workers.
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
    """Let the check find other workers' checks, if pairs are wanted: etcd and the names that the agent gets.

    ``trainer`` is the container as it is made; ``credentials``: where it has mounted what logs in to etcd.
    """
    if wanted is None or wanted.pairs is None:
        return
    check = body["initContainers"][0]
    check["env"] = deepcopy(trainer["env"])
    check["volumeMounts"] += [deepcopy(m) for m in trainer.get("volumeMounts") or [] if _at(m) == credentials]


def keep_off(body: dict[str, Any], nodes: Iterable[str]) -> None:
    """Keep the pod off ``nodes`` (names), beside whatever node affinity the template has.

    By the node's name, not by its hostname label, which may differ. A field selector takes one value, so each node is a
    requirement of its own; terms are alternatives, so each term gets all of them. An affinity of a wrong shape is left
    for the API server to refuse.
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
    """The object in a field of an object, absent being empty; None for any other shape."""
    found = (value.get(field) or {}) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None


def _at(mount: Any) -> str:
    return str(mount.get("mountPath")).rstrip("/") if isinstance(mount, dict) else ""
