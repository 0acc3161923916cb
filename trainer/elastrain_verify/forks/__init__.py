"""Python programs as forks of one process that has imported what they import: a rank starts in 20 ms, not in 2 s."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from elastrain.agent.process.launch import Forked, is_own_interpreter, plan_start
from elastrain.tether import tethered

PROGRAM = Path(__file__).with_name("server.py")
IMPORT_SECONDS = 100.0
FORK_SECONDS = 30.0
RANKS = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "elastrain.agent.runtime", "elastrain.elastic")
"""What ranks with torch and their agents import; ``torch._dynamo`` is imported by every optimizer at its first step."""


class NotWarm(RuntimeError):
    """The warm process could not do its imports."""


class WarmProcess:
    """A program started by :class:`Warm`, with the interface of ``subprocess.Popen``."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Its exit code (the negative number of a signal), or None while it runs."""
        with contextlib.suppress(BlockingIOError):
            self._read(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended. Raises ``TimeoutError``."""
        self._read(timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _read(self, timeout: float | None) -> None:
        if self.returncode is None:
            self._status.settimeout(timeout)
            self.returncode = int(self._status.recv(32) or -signal.SIGKILL)  # empty: the warm process was killed
            self._status.close()


class Warm:
    """A warm process (``server.py``)."""

    def __init__(self, *modules: str, environment: Mapping[str, str] = os.environ) -> None:
        """It has imported ``modules``, in ``environment``. Raises :class:`NotWarm`, ``TimeoutError``."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno()), *modules],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._channel.settimeout(IMPORT_SECONDS)
        self._imported: set[str] = set()
        if self._channel.recv(32) != b"ready":
            raise NotWarm

    def imports(self, module: str) -> None:
        """Programs that start from now on have imported ``module``: each would take seconds for a large one."""
        if module not in self._imported:
            self._channel.send(module.encode())
            assert self._channel.recv(32) == b"ready", f"the warm process could not import {module}"
            self._imported.add(module)

    def start(
        self, command: Sequence[str], env: Mapping[str, str], out: BinaryIO, cwd: Path | None = None
    ) -> WarmProcess:
        """Run ``command`` (the interpreter, then ``SCRIPT ...`` or ``-m MODULE ...``) in a fork: a separate session,
        the environment ``env``; its output goes to ``out``."""
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"command": [*command], "env": {**env}, "cwd": str(cwd or Path.cwd()), "server": self._process.pid}
        with theirs, out:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [out.fileno(), theirs.fileno()])
        status.settimeout(FORK_SECONDS)
        return WarmProcess(int(status.recv(32)), status)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(FORK_SECONDS)


class ForkedPopen:
    """What is used of ``subprocess.Popen``, for a Python program that a parent's death ends."""

    def __init__(self, start: Callable[[BinaryIO], WarmProcess], stdout: Any) -> None:
        self.stdout: BinaryIO | None = None
        if stdout == subprocess.PIPE:
            ours, theirs = os.pipe()
            out, self.stdout = os.fdopen(theirs, "wb"), os.fdopen(ours, "rb")
        else:
            out = os.fdopen(os.dup(stdout.fileno()), "wb")
        self._process = start(out)
        self.pid, self.poll = self._process.pid, self._process.poll
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._process.wait(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("the script", timeout or 0.0) from None


class Forks:
    """The module ``subprocess``, whose ``Popen`` forks a warm process where a fork is like an execution."""

    def __init__(self, warm: Warm) -> None:
        self._warm, self._lock = warm, threading.Lock()

    def Popen(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Any, **others: Any) -> Any:
        command = list(words)[len(tethered([], 0)) :]
        plan = plan_start(command, env, own_interpreter=is_own_interpreter(command[0], env))
        if not isinstance(plan, Forked) or len(plan.interpreter) > 1:
            return subprocess.Popen(words, env=env, cwd=cwd, stdout=stdout, **others)

        def start(out: BinaryIO) -> WarmProcess:
            with self._lock:
                return self._warm.start(command, env, out, cwd=cwd)

        return ForkedPopen(start, stdout)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


@contextlib.contextmanager
def preloaded(*modules: str, environment: Mapping[str, str]) -> Iterator[Any]:
    """``Popen`` for Python programs, by forks of one process if it can do its imports."""
    try:
        warm = Warm(*modules, environment=environment)
    except (NotWarm, OSError):
        yield subprocess.Popen
        return
    try:
        yield Forks(warm).Popen
    finally:
        warm.close()
