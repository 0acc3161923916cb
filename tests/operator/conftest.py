"""Fixtures of the operator's tests: builders of plain values; a real API server with a played kubelet and agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from control_plane import ApiServer, control_plane
from elastrain.api import names
from elastrain.api.job import JobSpec
from elastrain.api.keys import JobKeys
from elastrain.api.records import Termination
from elastrain.etcd import EtcdClient
from elastrain.etcd.server import EtcdServer
from elastrain_operator import loops
from elastrain_operator.observe import reflector
from operator_process import OperatorProcess, operator_account
from played import Played
from raw_cluster import TEMPLATE, Cluster, wire_time

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    """``make_spec(maxReplicas=4, ...)``: a valid spec, fields in wire names."""
    return lambda **fields: JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE, **fields})


@pytest.fixture
def quick_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that wait for next to nothing."""
    monkeypatch.setattr(loops, "COALESCE", 0.001)
    monkeypatch.setattr(loops, "PACE", 0.01)
    monkeypatch.setattr(loops, "ROUTINE", 0.02)
    monkeypatch.setattr(loops, "RETRY_DELAYS", (0.02,))


@pytest.fixture
def pod_body() -> Callable[..., dict[str, Any]]:
    """``pod_body(ordinal, state={...}, ...)``: a worker pod as the API server shows it."""

    def build(
        ordinal: int = 0,
        *,
        phase: str = "Pending",
        state: dict[str, Any] | None = None,
        conditions: list[dict[str, Any]] | None = None,
        status: dict[str, Any] | None = None,
        **meta: Any,
    ) -> dict[str, Any]:
        containers = [{"name": "trainer", "image": "trainer:1", "state": state}] if state else []
        return {
            "metadata": {
                "name": f"job-{ordinal}",
                "namespace": "default",
                "uid": f"uid-{ordinal}",
                "creationTimestamp": wire_time(NOW),
                "labels": {names.LABEL_ORDINAL: str(ordinal), names.LABEL_JOB_UID: "job-uid"},
                **meta,
            },
            "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}], "terminationGracePeriodSeconds": 30},
            "status": {
                "phase": phase,
                "containerStatuses": containers,
                "conditions": conditions or [],
                **(status or {}),
            },
        }

    return build


@pytest.fixture
def terminated() -> Callable[..., dict[str, Any]]:
    """``terminated(exit_code, record=..., reason=...)``: state of a container that has ended a second ago."""

    def build(exit_code: int, record: Termination | None = None, **fields: Any) -> dict[str, Any]:
        message = {"message": record.encode().decode()} if record else {}
        times = {"startedAt": wire_time(NOW), "finishedAt": wire_time(NOW + timedelta(seconds=90))}
        return {"terminated": {"exitCode": exit_code, **times, **message, **fields}}

    return build


@pytest.fixture
def quick_reflector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that is tried again at once."""
    monkeypatch.setattr(reflector, "RETRY_DELAYS", (0.001,))
    monkeypatch.setattr(reflector, "RESUME_DELAY", 0.001)


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One of their own: an operator that serves all namespaces would act on jobs that other areas' tests leave."""
    with control_plane(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(scope="session")
def operator_kubeconfig(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an operator that serves all namespaces."""
    return operator_account(apiserver, tmp_path_factory.mktemp("operator") / "kubeconfig")


@pytest.fixture(scope="session")
def shared_operators() -> list[OperatorProcess]:
    """Those that ``operator_process`` has started."""
    return []


@pytest.fixture(scope="session")
def operator_process(
    operator_kubeconfig: Path,
    etcd: EtcdServer,
    shared_operators: list[OperatorProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], OperatorProcess]]:
    """``operator_process()``: the running operator that most tests share; starts it where none runs. Its ``stop()``
    ends it, if it runs."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    started = shared_operators

    def start() -> OperatorProcess:
        if not (started and started[-1].is_running):
            started.append(OperatorProcess(operator_kubeconfig, log, f"--etcd-endpoints={etcd.endpoint}"))
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
    operator_kubeconfig: Path,
    shared_operators: list[OperatorProcess],
    tmp_path: Path,
) -> Iterator[Callable[..., OperatorProcess]]:
    """``operator_factory(etcd, namespace, *flags)``: an operator of the test's namespace; without ``--capacity``, with
    no right in any other. The shared one, which serves all namespaces, is stopped before."""
    namespaced = operator_account(apiserver, tmp_path / "kubeconfig", cluster.namespace)
    for shared in shared_operators:
        shared.stop()
    started: list[OperatorProcess] = []

    def start(etcd: EtcdServer, namespace: str, *more: str) -> OperatorProcess:
        flags = (f"--etcd-endpoints={etcd.endpoint}", f"--namespaces={namespace}", *more)
        kubeconfig = operator_kubeconfig if "--capacity" in more else namespaced
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(OperatorProcess(kubeconfig, log, *flags))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def cluster(apiserver: ApiServer) -> Cluster:
    """A namespace of its own on the API server."""
    found = Cluster(apiserver.kubeconfig, f"test-{time.monotonic_ns()}")
    found.call("POST", "/api/v1/namespaces", {"metadata": {"name": found.namespace}})
    # A controller creates this one in a whole cluster.
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
