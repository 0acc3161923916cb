"""Queries of a rendered chart."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]
Run = Callable[..., subprocess.CompletedProcess[str]]
"""Of Helm: the fixture ``helm``."""

EXTERNAL = ("etcd.endpoints[0]=etcd.example:2379",)
CREDENTIALS = (
    *EXTERNAL,
    "etcd.credentials.secretName=etcd",
    "etcd.credentials.user=true",
    "etcd.credentials.clientCertificate=true",
)
VALUE_SETS = {
    "defaults": (),
    "namespaces": ("watchNamespaces={team-a,team-b}",),
    "external": EXTERNAL,
    "credentials": CREDENTIALS,
    "persistent": ("etcd.persistence.enabled=true", "etcd.persistence.storageClassName=fast"),
    "placed": ("operator.nodeSelector.role=system", "etcd.priorityClassName=high", "imagePullSecrets[0].name=mine"),
    "no-tls": ("etcd.tls.mode=off",),
    "cert-manager": ("etcd.tls.mode=cert-manager",),
    "own-certificate": ("etcd.tls.mode=existing", "etcd.tls.secretName=mine", "etcd.tls.rootSecretName=my-root"),
    "per-job": (*CREDENTIALS, "etcd.credentials.perJob=true"),
    "unmeasured": ("metrics.enabled=false",),
    "unshared": ("capacity.enabled=false",),
    "gangs": ("gang.scheduler=volcano",),
    "native gangs": ("gang.scheduler=native",),
    "dashboard": ("dashboard.enabled=true",),
    "dashboard, namespaces": ("dashboard.enabled=true", "watchNamespaces={team-a,team-b}"),
    "bare": (
        "crds.install=false",
        "rbac.aggregateToDefaultRoles=false",
        "etcd.networkPolicy=false",
        "operator.replicas=1",
    ),
}
"""What is rendered by the tests that hold for every installation: a name, and settings."""


def one(manifests: Manifests, kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [m for m in manifests if m["kind"] == kind and name in m["metadata"]["name"]]
    return found


def operator(manifests: Manifests) -> dict[str, Any]:
    """Its Deployment."""
    (found,) = [m for m in manifests if m["kind"] == "Deployment" and component(m) == "operator"]
    return found


def component(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def pod_specs(manifests: Manifests) -> Iterator[dict[str, Any]]:
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            yield manifest["spec"]["template"]["spec"]


def environment(manifests: Manifests) -> dict[str, Any]:
    (container,) = operator(manifests)["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}
