"""Proof that all processes of a worker have ended: its kubelet has seen the end of the trainer container. Pure.

No proof is a pod that is gone without that report (deleted by force), a silent node, or the phase alone: the pod
garbage collector sets the phase Failed for pods of lost nodes, whose processes may live.
"""

from __future__ import annotations

from elastrain_operator.raw import Raw, mapping, objects

_UNLOCATED = "ContainerStatusUnknown"
"""The kubelet's reason for a container that it has not found: its processes may live."""


def processes_ended(spec: Raw, status: Raw, trainer: Raw) -> bool:
    """Whether no process of the trainer container lives, and none comes.

    ``trainer``: its container status. A container that may start again in its place proves nothing before the pod's
    end: its successor may have registered already.
    """
    terminated = mapping(mapping(trainer.get("state")).get("terminated"))
    if not terminated or terminated.get("reason") == _UNLOCATED:
        return False
    return status.get("phase") in ("Succeeded", "Failed") or not _may_restart(spec)


def _may_restart(spec: Raw) -> bool:
    """Whether the pod, or a rule of one of its containers (which may restart all of them), starts containers again."""
    containers = [*objects(spec.get("containers")), *objects(spec.get("initContainers"))]
    if spec.get("restartPolicy") != "Never" or any(c.get("restartPolicyRules") for c in containers):
        return True
    return any(c.get("restartPolicy") not in (None, "Never") for c in objects(spec.get("containers")))
