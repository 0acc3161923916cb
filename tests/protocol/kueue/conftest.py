"""A control plane of its own with a real Kueue, and an operator, each with the rights that the chart gives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from charts import Run
from control_plane import ApiServer, control_plane
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain_cli.etcd_server import EtcdServer
from kube_scheduling import controllers
from kueue_planes import Operator, access_of, install, kueue_of
from kueue_server import Kueue, built, install_crds
from kueue_world import World
from played import Played
from warm import Warm


@pytest.fixture(scope="session")
def kueue_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd, API server and garbage collector, for Kueue's tests alone: its webhooks look at all pods."""
    built()
    home = tmp_path_factory.mktemp("kueue-plane")
    with control_plane(home) as server:
        install_crds(server)  # first: a garbage collector looks for new kinds every 30 s
        with controllers(server, home, "garbage-collector-controller", more=("--kube-api-qps=100",)):
            yield server


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
