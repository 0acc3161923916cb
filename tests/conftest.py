"""Fixtures that several areas use. Everything started here is real, on loopback, and ended by its pid."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

import apart  # the first
import budgets  # noqa: F401 - registers profiles
import conditions
from bench_harness.secure_etcd import SecureEtcd
from control_plane import ApiServer, control_plane, program
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.wire import messages
from elastrain_cli.etcd_server import EtcdServer
from elastrain_cli.main import app
from lanes import Lanes, comes_last, order
from programs import Programs, are_coming, uses_programs
from tiers import Tiers
from warm import light, light_agents, share, warm, warm_agents

__all__ = ["light", "light_agents", "warm", "warm_agents"]

ROOT = Path(__file__).parents[1]
REPOSITORY = "registry.example/elastrain/operator"  # of the operator's image, which the chart does not name
KUBERNETES = "1.34.0"  # `helm template` contacts no cluster, and would assume an old version


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tiers(), "tiers")
    config.pluginmanager.register(Programs(), "programs")
    apart.turned(config)
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # to free all modules takes a second of CPU time in each process
    elif config.getoption("numprocesses", None):
        share()


# ---- several processes -----------------------------------------------------------------------------------------------
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """``-n`` alone means lanes; another ``--dist`` is left unchanged."""
    return Lanes(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    several = hasattr(config, "workerinput")
    late = are_coming()  # the same in all processes, as their orders must be

    def key(item: pytest.Item) -> tuple[object, ...]:
        path = item.nodeid.partition("::")[0]
        return late and uses_programs(path), order(path) if several else comes_last(path)

    items.sort(key=key)  # one process runs them in the order of their folders


def pytest_collection_finish() -> None:
    """What all tests are made of stays to the end: no search for garbage looks at these millions of objects again, nor
    does a job that looks for the script's schedulers."""
    gc.freeze()


@pytest.fixture
def elastrain(environment: dict[str, str]) -> Callable[..., Result]:
    """``elastrain("status", job, NAME="value")``: the command line in this process, in the module's ``environment``."""

    def run(*arguments: object, **variables: str) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments], env={**environment, **variables})

    return run


# ---- etcd ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    """One etcd for the whole run; ``job_keys`` separates the tests. Do not stop it: see ``etcd_factory``."""
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd_factory() -> Iterator[Callable[[], EtcdServer]]:
    """Starts separate servers, which a test may stop, kill and restart."""
    servers: list[EtcdServer] = []

    def start() -> EtcdServer:
        server = EtcdServer()
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def client(etcd: EtcdServer) -> Iterator[EtcdClient]:
    """A client of the shared etcd."""
    with EtcdClient(EtcdConfig.of(etcd.endpoint)) as connection:
        yield connection


@pytest.fixture
def job_keys() -> JobKeys:
    """Keys of a job that no other test uses."""
    return JobKeys("test", "job", uuid.uuid4().hex)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """``eventually(condition, within=30.0, what="...")``: wait, or fail with ``what``."""
    return conditions.eventually


@pytest.fixture
def guarded(etcd_factory: Callable[[], EtcdServer], tmp_path: Path) -> tuple[EtcdServer, Callable[[str], EtcdConfig]]:
    """An etcd with users; ``trainer`` may use /elastrain/ only, ``stranger`` has a wrong password.

    The server, and a function from user to configuration.
    """
    server = etcd_factory()
    passwords = {"root": "root-secret", "trainer": "secret", "stranger": "wrong"}

    def config(user: str) -> EtcdConfig:
        path = tmp_path / user
        path.write_text(passwords[user] + "\n")
        return EtcdConfig.of(server.endpoint, username=user, password_file=str(path))

    with EtcdClient(EtcdConfig.of(server.endpoint)) as client:

        def do(method: str, request: object) -> None:
            client.wire.unary("auth", method, request, timeout=5, what=method)

        do("RoleAdd", messages.AuthRoleAddRequest(name="root"))
        do("RoleAdd", messages.AuthRoleAddRequest(name="trainer"))
        permission = {"permType": "READWRITE", "key": b"/elastrain/", "range_end": b"/elastrain0"}
        do("RoleGrantPermission", messages.AuthRoleGrantPermissionRequest(name="trainer", perm=permission))
        for user in ("root", "trainer"):
            do("UserAdd", messages.AuthUserAddRequest(name=user, password=passwords[user]))
            do("UserGrantRole", messages.AuthUserGrantRoleRequest(user=user, role=user))
        do("AuthEnable", messages.AuthEnableRequest())
    return server, config


# ---- an API server, and Helm -----------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One API server, with the CRD, for the whole run; namespaces separate the tests. Skips if there is none (fails if
    ELASTRAIN_REQUIRE_APISERVER=1)."""
    with control_plane(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``helm(*args)`` runs Helm at the repository's root; ``cluster`` names the API server that it talks to.

    Skips without Helm (fails if ELASTRAIN_REQUIRE_HELM=1)."""
    found = program("helm", "ELASTRAIN_HELM", require="ELASTRAIN_REQUIRE_HELM")

    def run(*args: str, cluster: ApiServer | None = None) -> subprocess.CompletedProcess[str]:
        where = [f"--kubeconfig={cluster.kubeconfig}"] if cluster else []
        if cluster and args[0] in ("install", "upgrade"):  # half of its CPU time; one test has the server validate all
            args = (*args, "--disable-openapi-validation")
        if args[0] == "template":  # which finds no keys of the last time
            args = (args[0], "--set=etcd.tls.mode=generated", *args[1:])
        if args[0] in ("template", "install", "upgrade"):
            args = (args[0], f"--set=operator.image.repository={REPOSITORY}", *args[1:])
        return subprocess.run([found, *where, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def rendered(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., list[dict[str, Any]]]:
    """``rendered(*settings)``: the chart's manifests as release ``demo`` in namespace ``training``, to be read only."""

    @functools.cache
    def render(*settings: str) -> list[dict[str, Any]]:
        values = [option for setting in settings for option in ("--set", setting)]
        result = helm(
            "template", "demo", "charts/elastrain", "--namespace=training", f"--kube-version={KUBERNETES}", *values
        )
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.load_all(result.stdout, yaml.CSafeLoader) if document]

    return render


# ---- TLS and users ---------------------------------------------------------------------------------------------------
@pytest.fixture
def secure_etcd_factory(tmp_path: Path) -> Iterator[Callable[..., SecureEtcd]]:
    """``secure_etcd_factory("--auth-token-ttl", "1")``: a server with TLS and authentication."""
    servers: list[SecureEtcd] = []

    def start(*flags: str) -> SecureEtcd:
        files = tmp_path / f"etcd-files-{len(servers)}"
        files.mkdir()
        servers.append(SecureEtcd(files, *flags))
        servers[-1].start()
        servers[-1].check_users()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def secure_etcd(secure_etcd_factory: Callable[..., SecureEtcd]) -> SecureEtcd:
    return secure_etcd_factory()
