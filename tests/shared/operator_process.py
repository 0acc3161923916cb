"""The operator as a separate process, with only its declared permissions on the API server."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from bench_harness.processes import free_ports
from control_plane import ApiServer
from elastrain_operator.kube.client import CAPACITY_PERMISSIONS, CLUSTER_PERMISSIONS, LEASE_PERMISSIONS, PERMISSIONS
from raw_cluster import Cluster
from warm import Warm

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def operator_account(apiserver: ApiServer, path: Path, namespace: str = "") -> Path:
    """A kubeconfig, at ``path``, with exactly the permissions of ``kube/client.py``: in one namespace, or in all."""
    admin = Cluster(apiserver.kubeconfig, namespace or "default")
    name = {"metadata": {"name": "tested-operator"}}
    permit(admin, admin.namespace, everywhere=not namespace)
    cluster_rules = [
        {"apiGroups": [g], "resources": [r], "resourceNames": ["kube-system"], "verbs": sorted(verbs)}
        for (g, r), verbs in CLUSTER_PERMISSIONS.items()
    ]
    _grant(
        admin, f"{RBAC}/namespaces/kube-system", f"tested-operator-{admin.namespace}", cluster_rules, admin.namespace
    )
    accounts = f"/api/v1/namespaces/{admin.namespace}/serviceaccounts"
    admin.call("POST", accounts, name)
    answer = admin.call("POST", f"{accounts}/tested-operator/token", {"spec": {"expirationSeconds": 7200}})
    config = yaml.safe_load(apiserver.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path.write_text(yaml.safe_dump(config))
    return path


def permit(admin: Cluster, of: str, *, everywhere: bool = False) -> None:
    """Give the account in the namespace ``of`` the operator's permissions in that of ``admin``, or in all."""
    needed = {**PERMISSIONS, **LEASE_PERMISSIONS, **(CAPACITY_PERMISSIONS if everywhere else {})}
    rules = [{"apiGroups": [g], "resources": [r], "verbs": sorted(verbs)} for (g, r), verbs in needed.items()]
    place = RBAC if everywhere else f"{RBAC}/namespaces/{admin.namespace}"
    _grant(admin, place, "tested-operator", rules, of)


def _grant(admin: Cluster, place: str, name: str, rules: list[dict[str, Any]], of: str) -> None:
    kind, metadata = "Role" if "/namespaces/" in place else "ClusterRole", {"metadata": {"name": name}}
    admin.call("POST", f"{place}/{kind.lower()}s", {**metadata, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "tested-operator", "namespace": of}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    admin.call("POST", f"{place}/{kind.lower()}bindings", {**metadata, "roleRef": role, "subjects": [subject]})


class OperatorProcess:
    """``python -m elastrain_operator`` against the API server, with only its declared permissions."""

    def __init__(
        self,
        warm: Warm,
        kubeconfig: Path,
        log: Path,
        *flags: str,
        program: str = "impatient_operator.py",
    ) -> None:
        """``program``: a file beside this one; it runs as a fork of ``warm``."""
        self.log = log
        warm.imports("elastrain_operator.process")
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        argv = [sys.executable, str(Path(__file__).with_name(program)), *flags]
        self.health_port, self.metrics_port = free_ports(2)
        argv += [f"--health-port={self.health_port}", f"--metrics-port={self.metrics_port}"]
        self.process = warm.start(argv, environ, log.open("ab"))

    def health(self) -> dict[str, Any]:
        """The answer to the liveness probe."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/healthz", timeout=5) as answer:
            return dict(json.load(answer))

    def metrics(self) -> str:
        """The answer to Prometheus."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """End it by SIGTERM, which must be quick and without errors."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(15) == 0, self.log.read_text()[-3000:]
        faults = [x for x in self.log.read_text().splitlines() if "Traceback" in x or "is forbidden: User" in x]
        assert not faults, faults
