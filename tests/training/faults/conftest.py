"""A whole job under fault injection; its ranks run ``train_faults.py``."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elastrain.api.keys import JobKeys
from elastrain_cli.etcd_server import EtcdServer
from real_job import Job
from warm import Warm

SCRIPT = Path(__file__).with_name("train_faults.py")


class FaultyJob(Job):
    """Its script misbehaves if asked to."""

    def start(self, *workers: str, delay: float = 0.05, command: Sequence[str] = (), **options: str) -> None:
        script = [sys.executable, str(SCRIPT), str(self.folder), str(delay)]
        super().start(*workers, command=command or script, **options)

    def ask(self, worker: str, what: str) -> None:
        """Have the script of ``worker`` misbehave (see there)."""
        (self.folder / f"{worker}.{what}").touch()


@pytest.fixture
def job(warm: Warm, tmp_path: Path, etcd_factory: Callable[[], EtcdServer], job_keys: JobKeys) -> Iterator[FaultyJob]:
    """A job with an etcd of its own, which the test may stop."""
    job = FaultyJob(warm, tmp_path, etcd_factory(), job_keys)
    yield job
    job.close()


class Proxy:
    """A TCP proxy that the test can cut: established connections are silent then, new ones are refused."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._closing = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes."""
        self._open.clear()

    def mend(self) -> None:
        """New connections work again; those from before the cut end."""
        self._end_connections()
        self._open.set()

    def close(self) -> None:
        self._closing = True
        self._open.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end_connections()

    def _end_connections(self) -> None:
        sockets, self._sockets = self._sockets, []
        for s in sockets:
            with contextlib.suppress(OSError):  # the other side was first
                s.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                self._open.wait()
                other.sendall(data)
        except OSError:
            pass
        for s in (one, other):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """``proxy(endpoint)``: a way to an etcd that can be cut."""
    proxies: list[Proxy] = []

    def make(endpoint: str) -> Proxy:
        proxies.append(Proxy(endpoint))
        return proxies[-1]

    yield make
    for one in proxies:
        one.close()
