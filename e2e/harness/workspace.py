"""A namespace with a shared volume: the claim ``shared``, a folder of this machine that all nodes can write."""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness import release
from harness.commands import SHARED, kubectl


def make(name: str, folders: Iterable[str]) -> None:
    """The namespace, with ``folders`` on its volume that everybody may write."""
    for folder in folders:
        path = SHARED / name / folder
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
    volume = {"storageClassName": "shared", "accessModes": ["ReadWriteMany"]}
    place = {"hostPath": {"path": f"/shared/{name}"}, "claimRef": {"namespace": name, "name": "shared"}}
    objects = [
        {"kind": "Namespace", "metadata": {"name": name, "labels": {"elastrain-e2e": "yes"}}},
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, **volume, **place},
        },
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared", "namespace": name},
            "spec": {**volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]
    items = [{"apiVersion": "v1", **o} for o in objects]
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def remove(name: str) -> None:
    """The namespace and all that is in it, its volume's files included."""
    kubectl("delete", "namespace", name, "--wait", "--timeout=90s", "--ignore-not-found", timeout=120)
    kubectl("delete", "persistentvolume", name, "--wait", "--timeout=30s", "--ignore-not-found")
    release.remove_shared(name)
