"""Processes of a run: started in sessions of their own, and all ended by their pids."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import psutil

from elastrain.agent.process.supervisor import become_reaper
from elastrain.tether import tethered

HOST = "127.0.0.1"
PORTS = range(12000, 32000)
"""Below those that Linux gives to outgoing connections: a port that is free now stays free until a server binds it."""
END_SECONDS = 10.0
"""For killed processes to vanish."""


class Processes:
    """The processes of one run. They die with the thread that starts them: use it from the main thread."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Output goes to ``directory/<name>.log``; every process gets ``environment``."""
        become_reaper()  # orphans of a killed agent become children of this process, where end() finds them
        self._directory = directory
        self._environment = environment
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` under a ``name`` that has not been used."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self._started[name] = popen(command, log, {**self._environment, **environment})

    def runs(self, name: str) -> bool:
        return self._started[name].poll() is None

    def tree(self, name: str) -> list[int]:
        """Pids of a process and all its descendants; empty when it has ended."""
        process = self._started[name]
        return [p.pid for p in _tree(process.pid)] if process.poll() is None else []

    def terminate(self, name: str) -> float:
        """SIGTERM, to this process alone. Returns the time just before."""
        at = time.monotonic()
        self._started[name].terminate()
        return at

    def send(self, pids: Iterable[int], which: signal.Signals) -> float:
        """Send a signal to processes that belong to this run. Returns the time just before."""
        at = time.monotonic()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        return at

    def kill(self, pids: Iterable[int]) -> float:
        """``kill -9`` of processes that belong to this run. Returns the time just before."""
        return self.send(pids, signal.SIGKILL)

    def kill_tree(self, name: str) -> float:
        """``kill -9`` of a process and all its descendants; returns the time just before, when they have ended.

        Raises ``RuntimeError`` if one does not vanish.
        """
        tree = _tree(self._started[name].pid)
        at = self.kill(p.pid for p in tree)
        _vanished(tree)
        return at

    def end(self, spare: Collection[int] = ()) -> None:
        """``kill -9`` everything that was started and still runs, and all orphans but the children ``spare`` (pids).

        Raises ``RuntimeError`` if a process does not vanish.
        """
        for name, process in self._started.items():
            self.kill(self.tree(name))
            process.wait(END_SECONDS)
        orphans = [p for child in psutil.Process().children() if child.pid not in spare for p in _tree(child.pid)]
        self.kill(p.pid for p in orphans)
        _vanished(orphans)


class Load:
    """One process for each core that only computes, at normal priority, while the context lasts."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.pid for p in self._processes)

    def __enter__(self) -> Self:
        spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
        for _ in os.sched_getaffinity(0):
            self._processes.append(popen(spin, subprocess.DEVNULL, os.environ))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def popen(
    command: Sequence[str], output: BinaryIO | int, environment: Mapping[str, str], *, keep: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    """A process that dies with the calling thread, and that Ctrl-C does not reach: the benchmark ends it in order.

    ``keep``: descriptors that it gets."""
    return subprocess.Popen(
        tethered(command, signal.SIGKILL),
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,
        pass_fds=tuple(keep),
    )


def cpu_of(pid: int) -> float:
    """Processor seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def listens(port: int) -> bool:
    """Whether a server of loopback answers there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Distinct unused TCP ports of loopback."""
    chosen: list[int] = []
    for port in random.Random().sample(PORTS, len(PORTS)):  # not the seed that hypothesis sets
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((HOST, port))
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise OSError(f"of the ports {PORTS}, fewer than {count} are free on {HOST}")


def _vanished(killed: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(killed, END_SECONDS)
    if alive:
        raise RuntimeError(f"these processes were killed and did not end within {END_SECONDS:g} s: {alive}")


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []
