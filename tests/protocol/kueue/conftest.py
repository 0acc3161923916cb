"""A control plane of its own with a real Kueue, and an operator, each with the rights that the chart gives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import Run
from control_plane import ApiServer, control_plane
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain.etcd.server import EtcdServer
from kueue_server import ACCOUNT, Kueue, built, garbage_collector, install_crds
from kueue_world import World
from operator_process import OperatorProcess
from played import Played
from warm import Warm

NAMESPACE = "elastrain"
SETTINGS = ("--set=kueue.enabled=true,fullnameOverride=operator,capacity.enabled=false", f"--namespace={NAMESPACE}")
SHOWN = ("rbac", "kueue", "admission", "lease", "cluster-identity")


@pytest.fixture(scope="session")
def kueue_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd, API server and garbage collector, for Kueue's tests alone: its webhooks look at all pods."""
    built()
    home = tmp_path_factory.mktemp("kueue-plane")
    with control_plane(home) as server:
        install_crds(server)  # first: a garbage collector looks for new kinds every 30 s
        with garbage_collector(server, home):
            yield server


def install(server: ApiServer, helm: Run, *values: str) -> list[dict[str, Any]]:
    """The chart's rights and admission policies, in force. Returns all objects."""
    show = [f"--show-only=templates/{name}.yaml" for name in SHOWN]
    settings = (*SETTINGS, *(f"--set={value}" for value in values))
    made = helm("template", "x", "charts/elastrain", *settings, "--kube-version=1.34.0", *show)
    assert made.returncode == 0, made.stderr
    objects = [o for o in yaml.safe_load_all(made.stdout) if o]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": NAMESPACE}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    applied = server.kubectl("apply", "-f", "-", document=yaml.safe_dump_all([space, account, *objects]))
    assert applied.returncode == 0, applied.stderr
    return objects


def kueue_of(server: ApiServer, objects: list[dict[str, Any]], home: Path) -> Kueue:
    """Kueue with its own rights and those that the chart's ``objects`` give it; not started."""
    [role] = [o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "operator-kueue"]
    [binding] = [o for o in objects if o["kind"] == "ClusterRoleBinding" and o["metadata"]["name"] == "operator-kueue"]
    [subject] = binding["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == ACCOUNT
    return Kueue(server, home, role["rules"])


def access_of(server: ApiServer, path: Path) -> Path:
    """A kubeconfig, at ``path``, with a token of the chart's service account."""
    token = server.kubectl("create", "token", "operator", f"--namespace={NAMESPACE}", "--duration=2h").stdout
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="session")
def installed(kueue_plane: ApiServer, helm: Run) -> list[dict[str, Any]]:
    """The chart's objects on the control plane."""
    return install(kueue_plane, helm)


@pytest.fixture(scope="session")
def kueue(
    kueue_plane: ApiServer, installed: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kueue]:
    """Kueue, as a process. ``configured`` starts it with another configuration."""
    process = kueue_of(kueue_plane, installed, tmp_path_factory.mktemp("kueue"))
    process.start()
    yield process
    process.close()


@pytest.fixture
def configured(kueue: Kueue) -> Iterator[Callable[..., None]]:
    """``configured(**configuration)`` restarts Kueue with it; afterwards it is as before."""

    def start(**more: Any) -> None:
        kueue.stop()
        kueue.start(**more)

    yield start
    start()


@pytest.fixture(scope="session")
def operator_access(kueue_plane: ApiServer, installed: list[dict[str, Any]], tmp_path_factory: Any) -> Path:
    """The operator's kubeconfig."""
    return access_of(kueue_plane, Path(tmp_path_factory.mktemp("operator") / "kubeconfig"))


class Operator:
    """The operator of all namespaces: ``start()``, ``kill()``, ``process``."""

    def __init__(self, warm: Warm, access: Path, etcd: EtcdServer, folder: Path) -> None:
        self._warm, self._access, self._etcd, self._folder = warm, access, etcd, folder
        self.process: OperatorProcess | None = None

    def start(self) -> OperatorProcess:
        if self.process is None or not self.process.is_running:
            flags = (f"--etcd-endpoints={self._etcd.endpoint}", "--kueue")
            self.process = OperatorProcess(self._warm, self._access, self._folder / "operator.log", *flags)
        return self.process

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()


@pytest.fixture(scope="session")
def operator(
    light: Warm, operator_access: Path, etcd: EtcdServer, kueue: Kueue, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    found = Operator(light, operator_access, etcd, tmp_path_factory.mktemp("kueue-operator"))
    found.start()
    yield found
    if found.process is not None:
        found.process.stop()


@pytest.fixture
def world(kueue_plane: ApiServer, operator: Operator) -> Iterator[World]:
    """A namespace, and queues of its own; ended with the test."""
    operator.start()
    found = World(kueue_plane, f"team-{time.monotonic_ns()}")
    yield found
    found.close()


@pytest.fixture
def play(world: World, client: EtcdClient) -> Iterator[Callable[[JobKeys], Played]]:
    """``play(keys)``: kubelet and agents for one job."""
    players: list[Played] = []

    def start(keys: JobKeys) -> Played:
        players.append(Played(world, client, keys))
        return players[-1]

    yield start
    for player in players:
        player.close()
