"""A control plane without kubelets, on loopback; kwok plays nodes and pods."""

from __future__ import annotations

import csv
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench_harness.processes import Processes, free_ports
from bench_harness.program import Failed
from bench_operator.net import Api, Refused
from elastrain_cli.etcd_server import find_etcd
from elastrain_operator.kube.client import CAPACITY_PERMISSIONS, CLUSTER_PERMISSIONS, LEASE_PERMISSIONS, PERMISSIONS
from elastrain_resource.schema.crd import crd, set_crd

BIN = Path(os.environ.get("ELASTRAIN_CACHE") or Path.home() / ".cache/elastrain") / "bin"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm", "kwok", "kwok-stages")
BUILD = "e2e/cluster/build.sh kubernetes helm && scripts/get-kwok"
NAMESPACE = "bench"
RELEASE = "elastrain"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
"""The operator's user; it has the rights that the chart gives to the operator."""
AUDITED = (OPERATOR, "system:serviceaccount:kube-system:job-controller")
USERS = ("admin", "controllers", "scheduler", "kwok", OPERATOR)
SECRET = "hub"
"""Of the namespace, for jobs that use one."""
START_SECONDS = 300.0
GPUS = 32
"""Of a node, if not said otherwise."""


def missing() -> str | None:
    """Missing programs, and how to get them; None: all are there."""
    absent = [name for name in PROGRAMS if not (BIN / name).exists()]
    return f"{', '.join(absent)}: not in {BIN}; `{BUILD}` builds them" if absent else None


def version(program: str) -> str:
    answer = subprocess.run([BIN / program, "--version"], capture_output=True, text=True, timeout=20, check=True)
    found = re.search(r"v\d+(\.\d+)+", answer.stdout)
    return found[0] if found else answer.stdout.strip()


def until(condition: Callable[[], object], seconds: float, what: str, every: float = 0.2) -> None:
    """Wait. Raises :class:`Failed`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(every)


class ControlPlane:
    """One control plane with its data in ``directory``; a context manager. All processes die with this one."""

    def __init__(self, directory: Path, nodes: int, gpus: int = GPUS, packs: bool = False) -> None:
        """``gpus``: of each node; ``packs``: the scheduler takes the node with the fewest free GPUs."""
        directory.mkdir(parents=True)
        self.directory = directory.resolve()
        self.processes = Processes(self.directory, os.environ)
        self._nodes = nodes
        self._room = {"cpu": "256", "memory": "4Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
        self._packs = packs
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self._client, self._peer, self._secure, controllers, scheduler, kwok = free_ports(6)
        self._ports = {"controllers": controllers, "scheduler": scheduler, "kwok": kwok}
        self.server = f"https://127.0.0.1:{self._secure}"
        self.audit_log = self.directory / "audit.log"

    def __enter__(self) -> ControlPlane:
        try:
            self._start()
        except BaseException:
            self.processes.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.end()
        for data in ("etcd", "certs"):
            shutil.rmtree(self.directory / data, ignore_errors=True)

    def api(self, user: str = "admin") -> Api:
        """A new connection."""
        return Api(self._secure, self._tokens[user])

    def kubeconfig(self, user: str) -> Path:
        path = self.directory / f"{user.rpartition(':')[2]}.kubeconfig"  # a colon would separate two paths
        access = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": {"server": self.server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": user, "namespace": NAMESPACE}}],
            "current-context": "bench",
        }
        path.write_text(json.dumps(access))  # JSON is YAML
        return path

    def kubectl(self, *args: str, limit: float) -> None:
        """Raises :class:`Failed` with its output."""
        argv = [str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig('admin')}", *args]
        log = self.directory / "kubectl.log"
        with log.open("wb") as out:
            done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, timeout=limit, check=False)
        if done.returncode:
            raise Failed(f"kubectl {args[0]}: exit code {done.returncode}: {log.read_text()[-2000:]}")

    def pid(self, name: str) -> int:
        return self.processes.tree(name)[0]

    def all_requests(self) -> int:
        """Number of requests that the API server has answered."""
        lines = self.api().text("/metrics").splitlines()
        return int(sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("apiserver_request_total{")))

    # ---- start -----------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        self._start_etcd()
        self._start_apiserver()
        for name in ("controllers", "scheduler", "kwok"):
            self.processes.start(name, getattr(self, f"_{name}")(), {})
        api = self.api()
        self._install(api)
        self._make_nodes()

        def ready() -> bool:
            items = api.get("/api/v1/nodes")["items"]
            return sum(_is_ready(node) for node in items) == self._nodes

        until(ready, START_SECONDS, f"{self._nodes} nodes are Ready", every=1.0)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        until(lambda: api.get(account, absent=True), START_SECONDS, "the namespace has a service account")

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._client}", f"http://127.0.0.1:{self._peer}"
        argv = [
            str(find_etcd()), "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync", "--log-level=warn",
            "--quota-backend-bytes", str(4 << 30), "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self.processes.start("etcd", argv, {})

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"{client}/health", timeout=2) as answer:
                    return b'"true"' in answer.read()
            except OSError:
                return False

        until(healthy, START_SECONDS, "etcd is healthy")

    def _start_apiserver(self) -> None:
        home = self.directory
        key = home / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        with (home / "tokens.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            for user, token in self._tokens.items():
                rows.writerow([token, user, user, *([] if user == OPERATOR else ["system:masters"])])
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": list(AUDITED)}, {"level": "None"}],
        }
        (home / "audit-policy.yaml").write_text(json.dumps(policy))
        argv = [
            str(BIN / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self._client}",
            f"--secure-port={self._secure}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--cert-dir={home / 'certs'}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={home / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--endpoint-reconciler-type=none",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000", f"--audit-policy-file={home / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}", "--audit-log-maxsize=2000",
        ]  # fmt: skip
        self.processes.start("apiserver", argv, {})

        def ready() -> bool:
            try:
                return self.api().text("/readyz") == "ok"
            except (OSError, http.client.HTTPException, Refused):
                return False

        until(ready, START_SECONDS, "the API server is ready")

    def _controllers(self) -> list[str]:
        return [
            str(BIN / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig('controllers')}",
            f"--service-account-private-key-file={self.directory / 'service-account.key'}", "--leader-elect=false",
            "--use-service-account-credentials=true", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controllers']}", "--kube-api-qps=500", "--kube-api-burst=1000",
        ]  # fmt: skip

    def _scheduler(self) -> list[str]:
        return [
            str(BIN / "kube-scheduler"), f"--config={self._scheduler_config()}", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['scheduler']}",
        ]  # fmt: skip

    def _scheduler_config(self) -> Path:
        access = {"kubeconfig": str(self.kubeconfig("scheduler")), "qps": 500, "burst": 1000}
        strategy = {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 1}]}
        fit = {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": access,
            "leaderElection": {"leaderElect": False},
            "profiles": [{"pluginConfig": [fit] if self._packs else []}],
        }
        path = self.directory / "scheduler.json"
        path.write_text(json.dumps(config))
        return path

    def _kwok(self) -> list[str]:
        return [
            str(BIN / "kwok"), "--kubeconfig", str(self.kubeconfig("kwok")), "--manage-all-nodes",
            "--node-lease-duration-seconds", "40", "-v", "WARN", "-c", str(BIN / "kwok-stages"),
            f"--server-address=127.0.0.1:{self._ports['kwok']}",
        ]  # fmt: skip

    def _install(self, api: Api) -> None:
        """The CRD, the operator's rights, the namespace."""
        for definition in (crd(), set_crd()):
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        name = {"metadata": {"name": RELEASE}}
        rights = {**PERMISSIONS, **CAPACITY_PERMISSIONS, **LEASE_PERMISSIONS, **CLUSTER_PERMISSIONS}
        rules = [{"apiGroups": [g], "resources": [r], "verbs": sorted(v)} for (g, r), v in rights.items()]
        api.call("POST", f"{rbac}/clusterroles", {**name, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RELEASE}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}
        api.call("POST", f"{rbac}/clusterrolebindings", {**name, "roleRef": role, "subjects": [subject]})
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": SECRET}})

    def _make_nodes(self) -> None:
        nodes = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"node-{i}", "annotations": {"kwok.x-k8s.io/node": "fake"}},
                "status": {"allocatable": self._room, "capacity": self._room},
            }
            for i in range(self._nodes)
        ]
        path = self.directory / "nodes.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        self.kubectl("create", "-f", str(path), limit=START_SECONDS)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
