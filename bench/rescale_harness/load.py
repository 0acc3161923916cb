"""A load beside the benchmark: processes that compute and do nothing else, at the priority of everybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Self

from elastrain.tether import tethered


class Load:
    """One process for each core while the context lasts; ended by their pids."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(p.pid for p in self._processes)

    def __enter__(self) -> Self:
        spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
        for _ in os.sched_getaffinity(0):
            self._processes.append(
                subprocess.Popen(
                    tethered(spin, signal.SIGKILL),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
