"""The systems under test: the controller that makes pods of jobs, its process, and its manifests."""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from bench_harness.processes import cpu_of, free_ports
from bench_harness.program import Failed
from bench_harness.secure_etcd import SecureEtcd
from bench_operator import policies
from bench_operator.audit import Audit
from bench_operator.cluster import NAMESPACE, OPERATOR, RELEASE, SECRET, START_SECONDS, ControlPlane, until
from elastrain.api import names
from elastrain.api.keys import ROOT
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli.etcd_server import EtcdServer

MAX_WORKERS = 16
PLANE = ("apiserver", "etcd", "controllers", "scheduler", "kwok")
"""Processes of every control plane."""
_CONTAINER: dict[str, Any] = {
    "name": "trainer",
    "image": "trainer:1",
    "command": ["python", "train.py"],
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
}


class System(ABC):
    about: ClassVar[str]
    kind: ClassVar[str]
    """As kubectl takes it."""
    user: ClassVar[str]
    """Its user at the API server."""
    process: str
    """Name of its process among those of the control plane."""

    def __init__(self, plane: ControlPlane, secret: bool = False) -> None:
        """``secret``: whether the workers use a Secret of their namespace."""
        self.plane = plane
        self.container = {**_CONTAINER, "envFrom": [{"secretRef": {"name": SECRET}}]} if secret else _CONTAINER
        self.audit = Audit(plane.audit_log, self.user)

    @abstractmethod
    def manifest(self, name: str, workers: int) -> dict[str, Any]: ...

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    def until(self, condition: Callable[[], object], seconds: float, what: str, every: float = 0.2) -> None:
        """Wait. Raises ``Failed`` if it takes longer, or if the system's process ends."""

        def met() -> object:
            self.check()
            return condition()

        until(met, seconds, what, every)

    def check(self) -> None:
        """Raises ``Failed`` with the end of its log if its process has ended."""
        if not self.plane.processes.runs(self.process):
            log = (self.plane.directory / f"{self.process}.log").read_text(errors="replace")[-2000:]
            raise Failed(f"{self.process} has ended by itself:\n{log}")

    @abstractmethod
    def close(self) -> None:
        """End processes that the control plane does not end."""

    def settled(self, jobs: int) -> bool:
        """Whether the status of every job is Running."""
        return True

    def etcd(self) -> EtcdClient | None:
        """The etcd in which its jobs' members are played; None: they are not."""
        return None

    def cpu(self) -> float:
        """Processor seconds of its process so far. Raises ``Failed`` if it has ended."""
        self.check()
        return cpu_of(self.plane.pid(self.process))

    def by_process(self) -> dict[str, float]:
        """Processor seconds so far of each process of the run. ``benchmark`` counts pods and plays members; ``kubectl``
        is the sum of its ended processes."""
        own = os.times()
        found = {name: cpu_of(self.plane.pid(name)) for name in PLANE}
        return found | {"kubectl": own.children_user + own.children_system, "benchmark": own.user + own.system}

    def rss_mb(self) -> float:
        """Peak memory of its process."""
        status = Path(f"/proc/{self.plane.pid(self.process)}/status").read_text()
        line = next(x for x in status.splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024


class BatchJobs(System):
    """The measured process is the controller manager, which also collects garbage, watches nodes and so on."""

    about = "batch/v1 Jobs of Kubernetes itself, parallelism = workers"
    kind = "jobs.batch"
    user = "system:serviceaccount:kube-system:job-controller"
    process = "controllers"

    def manifest(self, name: str, workers: int) -> dict[str, Any]:
        pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [self.container]}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"parallelism": workers, "completions": workers, "template": {"spec": pod}},
        }

    def start(self) -> None:
        """It is part of the control plane."""

    def close(self) -> None:
        """It ends with the control plane."""


class Slim(System):
    """The operator without what the chart adds to it."""

    about = "the operator without TLS, users of etcd, Secrets, Lease, admission policies, capacity sharing and metrics"
    kind = names.PLURAL + "." + names.GROUP
    user = OPERATOR

    def __init__(self, plane: ControlPlane, secret: bool = False, profile: bool = False) -> None:
        super().__init__(plane, secret)
        self._profile = profile
        self._etcd = self._make_etcd(plane.directory / "coordination")
        self._client: EtcdClient | None = None
        self._starts = 0
        self._port = 0
        self.process = ""

    def _make_etcd(self, data: Path) -> EtcdServer:
        return EtcdServer(data_dir=data)

    def _config(self) -> EtcdConfig:
        """Of a client that may write all keys."""
        return EtcdConfig.of(self._etcd.endpoint)

    def _flags(self) -> list[str]:
        """Of the operator, beside those of every system."""
        return []

    def manifest(self, name: str, workers: int) -> dict[str, Any]:
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "minReplicas": 1,
                "maxReplicas": MAX_WORKERS,
                "replicas": workers,
                "template": {"spec": {"containers": [self.container]}},
            },
        }

    def start(self) -> None:
        self._etcd.start()
        self.start_operator()
        self.until(self.health, START_SECONDS, "the operator serves")

    def start_operator(self) -> None:
        """Start it and do not wait."""
        self._starts += 1
        self.process = f"operator-{self._starts}"
        [self._port] = free_ports(1)
        profiled = ["-m", "cProfile", "-o", str(self.plane.directory / f"{self.process}.prof")] if self._profile else []
        argv = [
            sys.executable, *profiled, "-m", "elastrain_operator", f"--etcd-endpoints={self._etcd.endpoint}",
            f"--health-port={self._port}", *self._flags(),
        ]  # fmt: skip
        self.plane.processes.start(self.process, argv, {"KUBECONFIG": str(self.plane.kubeconfig(OPERATOR))})

    def stop_operator(self) -> None:
        """SIGTERM, and wait for its end."""
        self.plane.processes.terminate(self.process)
        until(lambda: not self.plane.processes.runs(self.process), START_SECONDS, "the operator has ended")

    def health(self) -> dict[str, Any]:
        """The answer to the liveness probe; empty while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5) as answer:
                return dict(json.load(answer)["state"])
        except (OSError, ValueError, KeyError):
            return {}

    def settled(self, jobs: int) -> bool:
        path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
        items = self.plane.api().get(path)["items"]
        return sum(_trains_as_wanted(job) for job in items) == jobs

    def etcd(self) -> EtcdClient:
        if self._client is None:
            self._client = EtcdClient(self._config())
        return self._client

    def records(self) -> int:
        """Keys of jobs in etcd."""
        return len(self.etcd().get_prefix(f"{ROOT}{NAMESPACE}/")[0])

    def by_process(self) -> dict[str, float]:
        return super().by_process() | {"operator": self.cpu(), "its etcd": self.etcd_cpu()}

    def etcd_cpu(self) -> float:
        assert self._etcd.pid is not None
        return cpu_of(self._etcd.pid)

    def close(self) -> None:
        if self.process and self.plane.processes.runs(self.process):
            self.stop_operator()
        if self._client is not None:
            self._client.close()
        self._etcd.close()


class Shipped(Slim):
    """Members are played by one client of etcd with all rights, not by one user for each job."""

    about = (
        "the operator as the chart installs it: TLS, a user of etcd and a Secret for each job, Lease, admission "
        "policies, capacity, metrics"
    )

    def start(self) -> None:
        policies.install(self.plane)
        super().start()

    def _make_etcd(self, data: Path) -> SecureEtcd:
        files = self.plane.directory / "etcd-files"
        files.mkdir()
        self._job_key = files / "job-key"
        self._job_key.write_text(secrets.token_hex(24))
        self._secure = SecureEtcd(files, data_dir=data)
        return self._secure

    def _config(self) -> EtcdConfig:
        return self._secure.root

    def _flags(self) -> list[str]:
        [metrics] = free_ports(1)
        return [
            f"--etcd-ca={self._secure.ca_file}", "--etcd-username=root",
            f"--etcd-password-file={self._secure.password_file}", f"--job-key-file={self._job_key}",
            f"--lease={NAMESPACE}/{RELEASE}", "--capacity", f"--metrics-port={metrics}",
        ]  # fmt: skip


def _trains_as_wanted(job: dict[str, Any]) -> bool:
    status = job.get("status") or {}
    return status.get("phase") == "Running" and status.get("readyReplicas") == job["spec"]["replicas"]


SYSTEMS: dict[str, type[System]] = {"batch": BatchJobs, "elastrain": Shipped, "elastrain-slim": Slim}
