"""A namespace of the shared API server, with a simulated kubelet and agents, and operator processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import Run
from control_plane import ApiServer, control_plane
from drained_nodes import Scene
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain_cli.etcd_server import EtcdServer
from kube_scheduling import controllers, scheduling
from operator_fixtures import make_spec, now, pod_body, quick_loops, terminated
from operator_process import OperatorProcess, operator_account
from played import Played
from raw_cluster import Cluster
from warm import Warm

__all__ = ["make_spec", "now", "pod_body", "quick_loops", "terminated"]


@pytest.fixture(scope="session")
def operator_kubeconfig(apiserver: ApiServer, helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of an operator that serves all namespaces, bound by the chart's admission policies. Jobs of
    earlier tests of other areas are deleted."""
    deleted = apiserver.kubectl("delete", "etj,pods", "--all", "--all-namespaces", "--now", "--wait=false")
    assert deleted.returncode == 0, deleted.stderr
    path = operator_account(apiserver, tmp_path_factory.mktemp("operator") / "kubeconfig")
    show = ("--show-only=templates/admission.yaml", "--kube-version=1.34.0", "--namespace=default")
    made = helm("template", "x", "charts/elastrain", "--set=fullnameOverride=tested-operator", *show)
    policies = list(yaml.safe_load_all(made.stdout))
    for policy in policies:  # the tests' operators hold Leases of several names
        rules = policy["spec"].get("matchConstraints", {}).get("resourceRules", [])
        rules[:] = [r for r in rules if r["resources"] != ["leases"]]
    applied = apiserver.kubectl("apply", "-f", "-", document=yaml.safe_dump_all(policies))
    assert applied.returncode == 0, made.stderr + applied.stderr
    return path


@pytest.fixture(scope="session")
def shared_operators() -> list[OperatorProcess]:
    """The operators that ``operator_process`` has started."""
    return []


@pytest.fixture(scope="session")
def operator_process(
    light: Warm,
    operator_kubeconfig: Path,
    etcd: EtcdServer,
    shared_operators: list[OperatorProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], OperatorProcess]]:
    """``operator_process()``: the running operator that most tests share; starts it if none runs. Its ``stop()`` ends
    it if it runs."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    started = shared_operators

    def start() -> OperatorProcess:
        if not (started and started[-1].is_running):
            started.append(OperatorProcess(light, operator_kubeconfig, log, f"--etcd-endpoints={etcd.endpoint}"))
        return started[-1]

    def stop() -> None:
        if started:
            started[-1].stop()

    start.stop = stop
    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def operator_factory(
    apiserver: ApiServer,
    cluster: Cluster,
    light: Warm,
    operator_kubeconfig: Path,
    shared_operators: list[OperatorProcess],
    tmp_path: Path,
) -> Iterator[Callable[..., OperatorProcess]]:
    """``operator_factory(etcd, namespace, *flags, **how)``: an operator of the test's namespace (``how``: see
    ``OperatorProcess``); without ``--capacity`` it has no permission in any other. It first stops the shared one, which
    serves all namespaces."""
    namespaced = operator_account(apiserver, tmp_path / "kubeconfig", cluster.namespace)
    for shared in shared_operators:
        shared.stop()
    started: list[OperatorProcess] = []

    def start(etcd: EtcdServer, namespace: str, *more: str, **how: Any) -> OperatorProcess:
        flags = (f"--etcd-endpoints={etcd.endpoint}", f"--namespaces={namespace}", *more)
        kubeconfig = operator_kubeconfig if "--capacity" in more else namespaced
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(OperatorProcess(light, kubeconfig, log, *flags, **how))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def cluster(apiserver: ApiServer) -> Cluster:
    """A separate namespace on the API server."""
    return namespaced(apiserver)


@pytest.fixture
def neighbour(apiserver: ApiServer, cluster: Cluster) -> Cluster:
    """The namespace of another tenant."""
    return namespaced(apiserver)


def namespaced(apiserver: ApiServer) -> Cluster:
    found = Cluster(apiserver.kubeconfig, f"test-{time.monotonic_ns()}")
    found.call("POST", "/api/v1/namespaces", {"metadata": {"name": found.namespace}})
    # In a complete cluster a controller creates this object.
    account = f"/api/v1/namespaces/{found.namespace}/serviceaccounts"
    found.call("POST", account, {"metadata": {"name": "default"}})
    return found


@pytest.fixture
def play(cluster: Cluster, client: EtcdClient) -> Iterator[Callable[[JobKeys], Played]]:
    """``play(keys)``: kubelet and agents for one job."""
    players: list[Played] = []

    def start(keys: JobKeys) -> Played:
        players.append(Played(cluster, client, keys))
        return players[-1]

    yield start
    for player in players:
        player.close()


@pytest.fixture(scope="session")
def disruptions(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kubernetes' controller of disruption budgets."""
    with controllers(apiserver, tmp_path_factory.mktemp("disruptions"), "disruption-controller"):
        yield


@pytest.fixture
def scene(
    apiserver, cluster, play, eventually, operator_process, operator_factory, etcd, tmp_path, disruptions
) -> Iterator[Scene]:
    operator_process.stop()  # it serves all namespaces, and does not share them out
    operator_factory(etcd, cluster.namespace, "--capacity", "--capacity-hysteresis=0")
    made = Scene(apiserver, cluster, play, eventually, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plane(
    request: pytest.FixtureRequest, light: Warm, etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """A control plane of the module's own with Kubernetes' scheduler, and an operator that shares its nodes out. The
    module names more of it: ``CONTROLLERS``, feature ``GATES``, and ``FLAGS`` of the operator."""
    home, module = tmp_path_factory.mktemp("plane"), request.module
    gates = module.GATES
    with (
        control_plane(home, f"--feature-gates={gates}") as server,
        scheduling(server, home, *module.CONTROLLERS, gates=gates),
    ):
        access = operator_account(server, home / "operator")
        flags = (f"--etcd-endpoints={etcd.endpoint}", "--capacity", "--capacity-hysteresis=0", *module.FLAGS)
        operator = OperatorProcess(light, access, home / "operator.log", *flags)
        yield server
        operator.stop()


@pytest.fixture
def scheduled(cluster: Cluster, play: Callable[..., Played]) -> Callable[..., Played]:
    """``scheduled(name, template, **spec)``: a job whose containers run where the scheduler binds them."""

    def start(name: str, template: dict[str, Any], **spec: Any) -> Played:
        player = play(cluster.create_job(name, template=template, **spec))
        player.may_start = lambda _name, pod: bool(pod["spec"].get("nodeName"))
        return player

    return start
