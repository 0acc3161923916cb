"""``elastrain verify`` in this process; the script's own processes are forks of the warm one."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from corpus import Script
from elastrain.cli.local import worker
from elastrain.cli.local.command import with_overrides
from elastrain.tether import tethered
from elastrain_verify.command import execute
from elastrain_verify.command.answer import Answer, Report
from elastrain_verify.command.verification import Options, Verification
from warm import Warm


class WarmPopen:
    """What is used of ``subprocess.Popen``, for a Python program that a parent's death ends."""

    def __init__(
        self, warm: Warm, lock: threading.Lock, words: Sequence[str], env: Mapping[str, str], cwd: Path, stdout: Any
    ) -> None:
        if stdout == subprocess.PIPE:
            ours, theirs = os.pipe()
            out, self.stdout = os.fdopen(theirs, "wb"), os.fdopen(ours, "rb")
        else:
            out, self.stdout = os.fdopen(os.dup(stdout.fileno()), "wb"), None
        with lock:
            self._process = warm.start(list(words)[len(tethered([], 0)) :], env, out, cwd=cwd)
        self.pid, self.poll = self._process.pid, self._process.poll
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._process.wait(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("the script", timeout or 0.0) from None


class Processes:
    """The module ``subprocess`` with another ``Popen``."""

    def __init__(self, warm: Warm) -> None:
        self._warm, self._lock = warm, threading.Lock()

    def Popen(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Any, **_: Any) -> WarmPopen:
        return WarmPopen(self._warm, self._lock, words, env, cwd, stdout)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


@pytest.fixture
def judge(warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Answer]]:
    """``judge(script)``: what ``elastrain verify`` says, of the runs ``only`` if some are named."""
    for module in (worker, execute):
        monkeypatch.setattr(module, "subprocess", Processes(warm))

    def run(script: Script, only: Sequence[str] = ()) -> Answer:
        for package in script.packages:
            warm.imports(package)
        options = Options(script.path, workers=script.workers, only=only, overrides=script.overrides)
        job = with_overrides(script.path, script.overrides, [])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return Verification(job, options, tmp_path, Report(as_json=False)).judge()

    yield run
