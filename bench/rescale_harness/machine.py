"""Facts about the machine and the software that a figure depends on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from elastrain.etcd.server import find_etcd
from rescale_harness.results import Machine


def machine() -> Machine:
    """Call it before anything is started: it notes the load. Raises ``EtcdNotFound``."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=version("torch"),
        etcd=_etcd_version(),
        elastrain=version("elastrain"),
        revision=_revision(),
        load=round(os.getloadavg()[0], 2),
    )


def _processor() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _etcd_version() -> str:
    answer = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, timeout=20, check=True)
    return answer.stdout.splitlines()[0].removeprefix("etcd Version: ")


def _revision() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a checkout
