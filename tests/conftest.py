"""Fixtures that several areas use. Everything started here is real, on loopback, and ended by its pid."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.wire import messages
from elastrain.local.etcd_server import EtcdServer


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    """One etcd for the whole run; tests keep apart by ``job_keys``. Do not stop it: see ``etcd_factory``."""
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd_factory() -> Iterator[Callable[[], EtcdServer]]:
    """Starts servers of one's own, to be stopped, killed and started again."""
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
    """``eventually(condition, within=10.0, what="...")``: wait, or fail with ``what``."""

    def wait(condition: Callable[[], object], within: float = 10.0, what: str = "") -> None:
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within:g} s: {what or 'the condition'}")
            time.sleep(0.02)

    return wait


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
