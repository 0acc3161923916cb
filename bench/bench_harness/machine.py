"""Facts that a figure depends on: the command, the commit, the machine and the software."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from bench_harness.stats import Model
from elastrain_cli.etcd_server import find_etcd

QUIET = 0.25
"""Load average per core above which other work used the machine."""


class Machine(Model):
    """Where, when and with what a report was measured."""

    command: str
    began: str
    """UTC."""
    commit: str
    """git's, with ``-dirty`` for uncommitted changes; empty outside a checkout."""
    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    torch: str
    etcd: str
    load: float
    """Load average over the minute before the benchmark began."""

    @property
    def lines(self) -> list[str]:
        """The facts for a reader of a table."""
        noise = [] if self.load <= QUIET * self.cores else ["The machine was not quiet: compare seconds with care."]
        return [
            f"Command: `{self.command}`; {self.began}; commit {self.commit or 'unknown'}.",
            f"Machine: {self.processor}, {self.cores} cores, {self.memory_gib:g} GiB, {self.kernel}; Python "
            f"{self.python}, torch {self.torch}, etcd {self.etcd}; load average {self.load:g} before it began.",
            *noise,
        ]


def machine() -> Machine:
    """The facts of this process. Call it before anything is started: it notes the load. Raises ``EtcdNotFound``."""
    return Machine(
        command=shlex.join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        began=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=version("torch"),
        etcd=_etcd_version(),
        load=round(os.getloadavg()[0], 2),
    )


def _processor() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _etcd_version() -> str:
    answer = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, timeout=20, check=True)
    return answer.stdout.splitlines()[0].removeprefix("etcd Version: ")


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
