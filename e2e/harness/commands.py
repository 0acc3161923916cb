"""Commands, and bounded waits for what they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

CACHE = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain"))
CLUSTER = os.environ.get("ELASTRAIN_CLUSTER", "elastrain")
ROOT = Path(__file__).resolve().parents[2]
SHARED = CACHE / f"{CLUSTER}-shared"
"""The folder that both workers of the cluster mount as ``/shared``."""


class CommandFailed(AssertionError):
    """A command ended with an error; the message has its words."""


def environment() -> dict[str, str]:
    """Of every command: our programs first, and our cluster."""
    return {
        **os.environ,
        "PATH": f"{CACHE / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(CACHE / f"{CLUSTER}.kubeconfig"),
    }


def run(
    *command: str, text: str | None = None, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with ``text`` as its input. Raises :class:`CommandFailed` unless ``check`` is False."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout, env=environment(), check=False
    )
    if check and done.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def kubectl(*arguments: str, **options: Any) -> str:
    """Standard output of ``kubectl arguments``."""
    return run("kubectl", *arguments, **options).stdout


def kubectl_json(*arguments: str) -> Any:
    return json.loads(kubectl(*arguments, "-o", "json"))


def docker(*arguments: str) -> str:
    return run("docker", *arguments).stdout


def helm(*arguments: str, text: str | None = None) -> str:
    return run("helm", *arguments, text=text, timeout=240).stdout


def eventually(what: str, probe: Callable[[], T], timeout: float = 60, shown: Callable[[], object] | None = None) -> T:
    """The first true value of ``probe``, asked once a second.

    Raises ``AssertionError`` after ``timeout`` seconds, with ``what`` was waited for and what ``shown`` says then.
    A failing command counts as "not yet" (the API server may just be restarting); the last one's words are shown.
    """
    end, last = time.monotonic() + timeout, ""
    while time.monotonic() < end:
        try:
            if value := probe():
                return value
            last = ""
        except CommandFailed as failure:
            last = str(failure)
        time.sleep(1)
    raise AssertionError(f"not within {timeout:g} s: {what}\n{last}\n{shown() if shown else ''}")
