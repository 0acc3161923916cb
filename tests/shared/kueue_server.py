"""Kueue's controller as a process on loopback, with its own webhooks, against a control plane without kubelets."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench_harness.processes import free_ports
from control_plane import CACHE, ApiServer, _missing, running
from raw_cluster import Cluster

KIND = "ElasticTrainingJob.v1alpha1.elastrain.dev"
SET_KIND = "WorkerSet.v1alpha1.elastrain.dev"
WEBHOOKS = frozenset({"workloads", "clusterqueues", "cohorts", "localqueues", "resourceflavors", "pods"})
API = "/apis/kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"
ACCOUNT = "system:serviceaccount:kueue-system:kueue-controller-manager"
START_SECONDS = 60
SYSTEM = ["kube-system", "kueue-system"]


def built() -> Path:
    """The folder that ``scripts/get-kueue`` makes, of $KUEUE_VERSION, else of the newest. Skips without it (fails if
    ELASTRAIN_REQUIRE_KUEUE=1)."""
    version = os.environ.get("KUEUE_VERSION", "")
    folder = CACHE / (f"kueue-{version}" if version else "kueue")
    if not (folder / "kueue").exists():
        _missing(f"there is no {folder}/kueue", "ELASTRAIN_REQUIRE_KUEUE", "scripts/get-kueue")
    return folder


def install_crds(server: ApiServer) -> None:
    """Kueue's kinds in v1beta2. Kueue 0.15 and 0.16 store v1beta1 and convert by a webhook, which needs a cluster."""
    crds = (built() / "crds.yaml").read_text()
    if os.environ.get("KUEUE_VERSION"):
        crds = yaml.safe_dump_all(_newest_only(crd) for crd in yaml.load_all(crds, yaml.CSafeLoader) if crd)
    for command in (
        ("apply", "--server-side", "--force-conflicts", "-f", "-"),
        ("wait", "--for=condition=Established", "--timeout=30s", "-f", "-"),
    ):
        done = server.kubectl(*command, document=crds)
        assert done.returncode == 0, done.stderr


def _newest_only(crd: dict[str, Any]) -> dict[str, Any]:
    newest = [v for v in crd["spec"]["versions"] if v["name"] == "v1beta2"] or crd["spec"]["versions"]
    crd["spec"]["versions"] = [{**v, "storage": v is newest[-1]} for v in newest]
    return crd


class Kueue:
    """One Kueue process; ``start(**configuration)`` and ``stop()``. Its account has Kueue's own roles and ``rules``."""

    def __init__(self, server: ApiServer, home: Path, rules: list[dict[str, Any]]) -> None:
        self.server, self.home, self.folder = server, home, built()
        self.webhook_port, self.health_port = free_ports(2)
        self._process: contextlib.ExitStack | None = None
        home.mkdir(exist_ok=True)
        self._certificate()
        self._account(rules)

    def start(self, *, external: bool = True, gates: str = "", **more: Any) -> None:
        """Start, wait until it answers, install its webhooks. ``external``: it knows our kind; ``more``: of its
        configuration."""
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self.webhook_port, "host": "127.0.0.1", "certDir": str(self.home / "metrics-certs")},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "managedJobsNamespaceSelector": _but_system(),
            "integrations": {
                "frameworks": ["batch/job", "pod"],
                **({"externalFrameworks": [KIND, SET_KIND]} if external else {}),
            },
            "featureGates": {"VisibilityOnDemand": False, **{g: True for g in gates.split(",") if g}},
            **more,
        }
        path = self.home / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        self._process = contextlib.ExitStack()
        environ = f"KUBECONFIG={self._kubeconfig}"
        argv = ["/usr/bin/env", environ, str(self.folder / "kueue"), "--config", str(path), "--zap-log-level=2"]
        log = self.home / "kueue.log"
        process = self._process.enter_context(running(argv, log, self.home))
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"Kueue is not ready after {START_SECONDS} s:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)
        self._install_webhooks()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def stop(self) -> None:
        """End it, and take its webhooks away."""
        self.close()
        names = ("validatingwebhookconfiguration/kueue", "mutatingwebhookconfiguration/kueue")
        self._kubectl("delete", *names, "--ignore-not-found")

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _certificate(self) -> None:
        folder = self.home / "metrics-certs"
        folder.mkdir(exist_ok=True)
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", *subject, *files]
        subprocess.run(command, check=True, capture_output=True)

    def _account(self, rules: list[dict[str, Any]]) -> None:
        """Kueue's service account with the roles of its own manifests, and ``rules``."""
        admin = Cluster(self.server.kubeconfig, "kueue-system")
        rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        user = {"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "kueue-system"}
        objects: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {k: user[k] for k in ("name", "namespace")}},
            {**rbac, "kind": "ClusterRole", "metadata": {"name": "kueue-of-the-chart"}, "rules": rules},
        ]
        for role in [*yaml.safe_load_all((self.folder / "roles.yaml").read_text()), objects[-1]]:
            if not role or not role.get("rules"):
                continue
            role["metadata"].pop("namespace", None)
            named = {**role, "kind": "ClusterRole"}
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]}
            binding = {**rbac, "kind": "ClusterRoleBinding", "metadata": {"name": f"kueue-{ref['name']}"}}
            objects += [named, {**binding, "roleRef": ref, "subjects": [user]}]
        self._kubectl("apply", "-f", "-", document=yaml.safe_dump_all(objects))
        path = "/api/v1/namespaces/kueue-system/serviceaccounts/kueue-controller-manager/token"
        token = admin.call("POST", path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
        config = yaml.safe_load(self.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self._kubeconfig = self.home / "kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))

    def _install_webhooks(self) -> None:
        ca = base64.b64encode((self.home / "metrics-certs/tls.crt").read_bytes()).decode()
        items = []
        for document in yaml.safe_load_all((self.folder / "webhooks.yaml").read_text()):
            if not document:
                continue
            document["metadata"]["name"] = "kueue"
            document["webhooks"] = [h for h in document["webhooks"] if WEBHOOKS & set(_resources(h))]
            for hook in document["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{self.webhook_port}{path}", "caBundle": ca}
                if "pods" in _resources(hook):
                    hook["namespaceSelector"] = _but_system()
            items.append(document)
        self._kubectl("apply", "-f", "-", document=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def _kubectl(self, *args: str, document: str | None = None) -> None:
        done = self.server.kubectl(*args, document=document)
        assert done.returncode == 0, done.stderr


def _resources(hook: dict[str, Any]) -> list[str]:
    return [r.split("/")[0] for rule in hook["rules"] for r in rule["resources"]]


def _but_system() -> dict[str, Any]:
    return {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": SYSTEM}]}
