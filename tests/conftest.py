"""Fixtures that several areas use. Everything started here is real, on loopback, and ended by its pid."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient, EtcdConfig
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
