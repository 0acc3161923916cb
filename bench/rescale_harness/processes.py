"""Processes of a run: started here, in sessions of their own, and all ended here by their pids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from elastrain.agent.process.supervisor import become_reaper
from elastrain.tether import tethered

END_SECONDS = 10.0
"""How long killed processes may take to vanish."""


class Processes:
    """The processes of one run. They die with the thread that starts them: use it from the main thread."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Output goes to ``directory/<name>.log``; ``environment`` is added to everybody's."""
        become_reaper()  # what a killed agent leaves behind comes to us, and so is found by end()
        self._directory = directory
        self._environment = environment
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` under a ``name`` that has not been used."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                tethered(command, signal.SIGKILL),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**self._environment, **environment},
                start_new_session=True,  # Ctrl-C is for the benchmark, which ends them in order
            )

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

    def kill(self, pids: Iterable[int]) -> float:
        """``kill -9`` of processes that belong to this run. Returns the time just before."""
        return self.send(pids, signal.SIGKILL)

    def send(self, pids: Iterable[int], which: signal.Signals) -> float:
        """Send a signal to processes that belong to this run. Returns the time just before."""
        at = time.monotonic()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
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
        _, alive = psutil.wait_procs(orphans, END_SECONDS)
        if alive:
            raise RuntimeError(f"these processes were killed and did not end within {END_SECONDS:g} s: {alive}")


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []
