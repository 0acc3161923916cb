"""A cluster of IPv6 only: Services of an IPv6 range, an operator that reaches API server and etcd at ``::1``, and real
agents in the environment of their admitted pods. The test plays the kubelet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import Run
from control_plane import ApiServer, control_plane
from elastrain import listening
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Member
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli.etcd_server import EtcdServer
from local_fixtures import FAKE_RANK
from operator_process import OperatorProcess, operator_account
from raw_cluster import Cluster
from warm import Warm, WarmProcess

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(300)]
ONLY = "::1"
RANGE = ("--service-cluster-ip-range=fd00:10:96::/112", f"--advertise-address={ONLY}", "--bind-address=::")


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With Services of IPv6 only; its kubeconfig names it at ``::1``."""
    with control_plane(tmp_path_factory.mktemp("ipv6"), *RANGE) as server:
        access = server.kubeconfig.read_text()
        server.kubeconfig.write_text(access.replace("https://127.0.0.1:", f"https://{listening.bracketed(ONLY)}:"))
        yield server


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdServer]:
    monkeypatch.setattr(listening, "loopback", lambda: ONLY)
    with EtcdServer() as server:
        yield server


class Kubelet:
    """Runs the trainer container of each pod, at the only address."""

    def __init__(self, cluster: Cluster, light: Warm, home: Path) -> None:
        self.cluster, self._light, self._home = cluster, light, home
        self.agents: dict[str, WarmProcess] = {}

    def look(self) -> None:
        for name, pod in self.cluster.pods().items():
            if name not in self.agents:
                self.agents[name] = self._start(name, pod)

    def _start(self, name: str, pod: dict[str, Any]) -> WarmProcess:
        address = {"podIP": ONLY, "podIPs": [{"ip": ONLY}], "hostIP": ONLY, "hostIPs": [{"ip": ONLY}]}
        since = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
        self.cluster.set_trainer(name, "Running", since, ready=True)
        pod = self.cluster.merge(f"{self.cluster.pods_path}/{name}/status", {"status": address})
        (trainer,) = pod["spec"]["containers"]
        own = {
            names.ENV_TERMINATION_LOG: str(self._home / f"{name}.termination"),
            names.ENV_FORK_RANKS: "off",  # these ranks do not import torch
            "FAKE_RANK_TRAIL": str(self._home),
        }
        given = {e["name"]: e.get("value") or str(_field(pod, e)) for e in trainer["env"]}
        argv = [sys.executable, "-m", "elastrain", "agent", "--", sys.executable, str(FAKE_RANK)]
        return self._light.start(argv, {**os.environ, **given, **own}, (self._home / f"{name}.log").open("ab"))

    def close(self) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait(10)


def _field(pod: dict[str, Any], variable: dict[str, Any]) -> object:
    """What the downward API gives."""
    found: Any = pod
    for part in variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "").split("."):
        found = found.get(part, "") if part else ""
    return found


@pytest.fixture
def kubelet(cluster: Cluster, light: Warm, tmp_path: Path) -> Iterator[Kubelet]:
    found = Kubelet(cluster, light, tmp_path)
    yield found
    found.close()


@pytest.fixture
def _operator(apiserver: ApiServer, light: Warm, etcd: EtcdServer, tmp_path: Path) -> Iterator[None]:
    access = operator_account(apiserver, tmp_path / "kubeconfig")
    operator = OperatorProcess(light, access, tmp_path / "operator.log", f"--etcd-endpoints={etcd.endpoint}")
    yield
    operator.stop()


def addresses(client: EtcdClient, keys: JobKeys) -> set[str]:
    return {Member.decode(kv.value).address for kv in client.get_prefix(keys.members)[0]}


@pytest.mark.usefixtures("_operator")
def test_job_trains_and_grows_at_addresses_of_ipv6(cluster, etcd, kubelet, eventually):
    assert etcd.endpoint.startswith("[::1]:")
    keys = cluster.create_job("v6", replicas=2, maxReplicas=3)

    def train(workers: int, client: EtcdClient) -> bool:
        kubelet.look()
        kv = client.get(keys.generation)
        there = kv is not None and len(Generation.decode(kv.value).members) == workers
        return there and cluster.status("v6").get("readyReplicas") == workers

    with EtcdClient(EtcdConfig.of(etcd.endpoint)) as client:
        eventually(lambda: train(2, client), 60, "two workers train")
        cluster.patch_job("v6", replicas=3)
        eventually(lambda: train(3, client), 60, "three workers train")
        assert addresses(client, keys) == {ONLY}
    (given,) = {e["value"] for p in cluster.pods().values() for e in env(p) if e["name"] == names.ENV_ETCD_ENDPOINTS}
    assert given == etcd.endpoint


def env(pod: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["spec"]["containers"][0]["env"]
    return found


def test_all_services_of_the_chart_have_addresses_of_ipv6(apiserver: ApiServer, helm: Run) -> None:
    settings = ("etcd.replicas=3", "dashboard.enabled=true")
    made = helm("template", "x", "charts/elastrain", "--kube-version=1.35.0", *(f"--set={s}" for s in settings))
    services = [m for m in yaml.safe_load_all(made.stdout) if m and m["kind"] == "Service"]
    for service in services:
        service["metadata"].pop("namespace", None)
    applied = apiserver.kubectl("apply", "-f", "-", "-o", "yaml", document=yaml.safe_dump_all(services))
    assert applied.returncode == 0, made.stderr + applied.stderr
    found = yaml.safe_load(applied.stdout)["items"]
    assert len(found) == len(services) > 2
    assert [s["spec"]["ipFamilies"] for s in found] == [["IPv6"]] * len(found)
    assert all(":" in s["spec"]["clusterIP"] or s["spec"]["clusterIP"] == "None" for s in found)
