"""The programs of tests as forks of one process that has imported what they import."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastrain_cli.local import worker
from elastrain_verify.forks import IMPORT_SECONDS, RANKS, Forks, Warm, WarmProcess

__all__ = ["RANKS", "Forks", "Warm", "WarmProcess"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
IMPORTS = {"warm": RANKS, "light": ("elastrain.agent.runtime",)}
ENV_SHARED = "ELASTRAIN_TESTS_WARM"
_shared: list[Warm] = []


def share() -> None:
    """Start one process of each kind for all processes of this run: its imports take 6 s of CPU time."""
    os.environ[ENV_SHARED] = f"elastrain-tests-{os.getpid()}"
    for kind in IMPORTS:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_address(kind))
        listener.listen()
        threading.Thread(target=_give, args=(kind, listener), daemon=True).start()


def _address(kind: str) -> str:
    return f"\0{os.environ[ENV_SHARED]}-{kind}"


def _give(kind: str, listener: socket.socket) -> None:
    process: Warm | None = None
    while True:
        link, _ = listener.accept()
        if process is None:
            _shared.append(process := _started(kind))
        with link:
            socket.send_fds(link, [str(process._process.pid).encode()], [process._channel.fileno()])


def forks_seconds() -> float:
    """CPU time of the shared processes and of their forks that have ended, which are no children of the tests."""
    stats = [Path(f"/proc/{process._process.pid}/stat").read_text() for process in _shared]
    ticks = sum(int(ticks) for stat in stats for ticks in stat.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _started(kind: str) -> Warm:
    return Warm(*IMPORTS[kind], environment={**os.environ, **ENVIRONMENT})


class Shared(Warm):
    """All hold the same end of its socket: a request is one message, and brings the socket for its answers."""

    def __init__(self, kind: str) -> None:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2 * IMPORT_SECONDS)
            link.connect(_address(kind))
            pid, (channel,), _, _ = socket.recv_fds(link, 32, 1)
        self._channel, self._imported = socket.socket(fileno=channel), set()
        self._channel.settimeout(IMPORT_SECONDS)
        self._process = SimpleNamespace(pid=int(pid), wait=lambda _: None)


def _process(kind: str) -> Iterator[Warm]:
    process = Shared(kind) if ENV_SHARED in os.environ else _started(kind)
    yield process
    process.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """``warm.start([sys.executable, SCRIPT, ...], env, out)``: starts programs that need torch."""
    yield from _process("warm")


@pytest.fixture(scope="session")
def light() -> Iterator[Warm]:
    """The same for programs without torch: agents of fake ranks, and operators."""
    yield from _process("light")


@pytest.fixture
def warm_agents(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> Warm:
    """Agents of local jobs, and their ranks, are forks of the warm process that has imported torch."""
    monkeypatch.setattr(worker, "subprocess", Forks(warm))
    return warm


@pytest.fixture
def light_agents(light: Warm, monkeypatch: pytest.MonkeyPatch) -> Warm:
    """Agents of local jobs of fake ranks are forks of the warm process without torch."""
    monkeypatch.setattr(worker, "subprocess", Forks(light))
    return light
