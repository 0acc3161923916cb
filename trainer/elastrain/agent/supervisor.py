"""The ranks as processes: start, signal, reap, and pass on what they print. Executes what the core decides."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastrain.agent.tether import tethered
from elastrain.api import names

TAIL_LINES = 50
HELD_BYTES = 4096
"""Of an unfinished line that is held back at most."""
PIPE_SECONDS = 0.5
"""How long a dead rank's output is waited for; a grandchild that left its process group may hold the pipe open."""

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_DEADLY = {signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


def become_reaper() -> None:
    """Have orphaned descendants handed to this process, as they are to PID 1. Linux only, like the pods."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def rank_environment(base: Mapping[str, str], local_rank: int, nproc: int, socket_path: Path) -> dict[str, str]:
    """The environment of a rank. Pure.

    Variables that describe a fixed world (``RANK``, ``WORLD_SIZE``, ``MASTER_*``) are removed: generations say
    that, and a stale value would mislead whoever reads it.
    """
    fixed_world = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}
    env = {k: v for k, v in base.items() if k not in fixed_world}
    env[names.ENV_AGENT_SOCKET] = str(socket_path)
    env[names.ENV_LOCAL_RANK] = str(local_rank)
    env["LOCAL_WORLD_SIZE"] = str(nproc)
    env.setdefault("PYTHONUNBUFFERED", "1")  # output goes through a pipe: lines should not wait for a full buffer
    # torch looks up the name of every address that its stores connect to, only to print it; where an answer is lost,
    # the resolver's default is to wait 5 s, in the middle of a rescale.
    env.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
    if nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks of one node must not fight for its cores
    return env


@dataclass(frozen=True, slots=True)
class Reaped:
    """A rank's process that has ended; exactly one of ``code`` and ``signal`` is not 0, or none."""

    local_rank: int
    code: int
    signal: int
    log_tail: str


@dataclass
class _Child:
    local_rank: int
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    pump: threading.Thread | None = None


class Supervisor:
    """Runs one incarnation of ranks at a time. To be used from one thread only, which must live as long as the ranks
    (the kernel binds the parent-death signal to the thread that forked)."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], nproc: int) -> None:
        self._command = list(command)
        self._environment = environment
        self._nproc = nproc
        self._children: dict[int, _Child] = {}

    def start(self, socket_path: Path) -> None:
        """Start all ranks. A command that cannot be executed ends with 127 and says so."""
        for local_rank in range(self._nproc):
            child = _Child(local_rank, self._spawn(local_rank, socket_path))
            child.pump = threading.Thread(target=_pump, args=(child,), name=f"output-{local_rank}", daemon=True)
            child.pump.start()
            self._children[child.process.pid] = child

    def _spawn(self, local_rank: int, socket_path: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            tethered(self._command, signal.SIGKILL),
            env=rank_environment(self._environment, local_rank, self._nproc, socket_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pids(self) -> dict[int, int]:
        """Local rank to pid, of ranks that have not been reaped."""
        return {child.local_rank: pid for pid, child in self._children.items()}

    def kill(self, signum: int, local_rank: int | None = None) -> None:
        """Signal the process group of every rank that has not been reaped, or only of this one."""
        for pid, child in self._children.items():
            if local_rank in (None, child.local_rank):
                _kill_group(pid, signum)

    def reap(self) -> list[Reaped]:
        """Collect every ended child, the orphans that PID 1 inherits included; return those that were ranks."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._children.pop(pid, None)
            if child is not None:
                ended.append(_autopsy(child, os.waitstatus_to_exitcode(status)))
        return ended


def _autopsy(child: _Child, exit_code: int) -> Reaped:
    child.process.returncode = exit_code  # it was reaped here: Popen must not look for it
    _kill_group(child.process.pid, signal.SIGKILL)  # data loaders and the like must not outlive their rank
    if child.pump is not None:
        child.pump.join(PIPE_SECONDS)
    code, signum = split_exit_code(exit_code)
    return Reaped(child.local_rank, code, signum, "\n".join(child.tail))


def split_exit_code(exit_code: int) -> tuple[int, int]:
    """(code, signal) of a process. Pure.

    A shell around the script reports a child that signal n ended as 128 + n: it counts as the signal.
    """
    if exit_code < 0:
        return 0, -exit_code
    return (0, exit_code - 128) if exit_code - 128 in _DEADLY else (exit_code, 0)


def _kill_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group has ended
        os.killpg(pid, signum)


def _pump(child: _Child) -> None:
    """Pass a rank's output through and remember its last lines."""
    out, err = child.process.stdout, child.process.stderr
    assert out is not None and err is not None
    with selectors.DefaultSelector() as selector, out, err:
        selector.register(out, selectors.EVENT_READ, _Stream(1, child.tail))
        selector.register(err, selectors.EVENT_READ, _Stream(2, child.tail))
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 65536)
                key.data.feed(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)


class _Stream:
    """One of a rank's two streams: whole lines go on, so that those of several ranks do not mix."""

    def __init__(self, fd: int, tail: deque[str]) -> None:
        self._fd = fd
        self._tail = tail
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        """Take what was read; empty: the stream has ended. A progress bar's carriage return ends a line, too."""
        data = self._held + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not chunk or len(data) - cut > HELD_BYTES:
            cut = len(data)
        self._held = data[cut:]
        self._pass_on(data[:cut])
        lines = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in data[:cut].split(b"\n"))
        self._tail.extend(line.decode(errors="replace") for line in lines if line)

    def _pass_on(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads our output any more: training goes on
            while data:
                data = data[os.write(self._fd, data) :]
