"""The ranks as processes: starts, signals and reaps them, and forwards their output. Executes the core's decisions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from elastrain import threads
from elastrain.agent.process.forker import ForkFailed, State, Zygote
from elastrain.agent.process.launch import NO_ZYGOTE, Executed, rank_environment
from elastrain.tether import tethered

TAIL_LINES = 50
HELD_BYTES = 4096
"""Most bytes of an unfinished line that are held back."""
PIPE_SECONDS = 0.5
"""Seconds to wait for a dead rank's output; a grandchild that left its process group may hold the pipe open."""

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_DEADLY = {signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}

log = structlog.get_logger()


def become_reaper() -> None:
    """Make the kernel reparent orphaned descendants to this process, as to PID 1. Linux only, as are the pods."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


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
    pid: int
    out: int
    err: int
    """Read ends of its output."""
    process: subprocess.Popen[bytes] | None = None
    """Set if it was executed."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    pump: threads.Thread | None = None


class Supervisor:
    """Runs one incarnation of ranks at a time. For one thread, which must live as long as the ranks (the kernel binds
    the parent-death signal to the thread that forked)."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        nproc: int,
        zygote: Zygote | Executed = NO_ZYGOTE,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Ranks are forks of ``zygote`` if it is one. ``wake`` is called, from any thread, when :meth:`reap` is needed
        without a SIGCHLD."""
        self._command = list(command)
        self._environment = environment
        self._nproc = nproc
        self._zygote = zygote
        self._wake = wake
        self._children: dict[int, _Child] = {}
        self._due: tuple[Path, list[int]] | None = None
        """Socket, and ranks that are started as soon as the zygote is warm."""
        self._unborn: list[Reaped] = []
        """Ranks that were killed before their start."""
        if isinstance(zygote, Zygote):
            zygote.watch(wake)

    def start(self, socket_path: Path, local_ranks: Iterable[int] | None = None) -> None:
        """Start these ranks (None: all); if the zygote still imports their modules, :meth:`reap` starts them later. A
        command that cannot be executed ends with 127 and a message."""
        waiting = self._due[1] if self._due is not None and self._due[0] == socket_path else []
        self._due = socket_path, [*waiting, *(range(self._nproc) if local_ranks is None else local_ranks)]
        self._start_due()

    def _start_due(self) -> None:
        if self._due is None or (isinstance(self._zygote, Zygote) and self._zygote.refresh() is State.WARMING):
            return
        (socket_path, local_ranks), self._due = self._due, None
        for local_rank in local_ranks:
            environment = rank_environment(self._environment, local_rank, self._nproc, socket_path)
            child = self._fork(local_rank, environment) or self._execute(local_rank, environment)
            child.pump = threads.start(_pump, child, name=f"output-{local_rank}")
            self._children[child.pid] = child
        how = "executed" if isinstance(self._zygote, Executed) else "forked"
        log.info("ranks started", pids=self.pids, how=how)

    def _fork(self, local_rank: int, environment: Mapping[str, str]) -> _Child | None:
        """A rank by fork; None if that is impossible: all further ranks are then executed."""
        zygote = self._zygote
        if isinstance(zygote, Executed):
            return None
        variables = {k: v for k, v in environment.items() if zygote.environment.get(k) != v}
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        try:
            return _Child(local_rank, zygote.fork(variables, their_out, their_err), out, err)
        except ForkFailed as error:
            log.warning("ranks are executed instead of forked, which takes longer", why=str(error))
            self._zygote = Executed(str(error))
            os.close(out)
            os.close(err)
            return None
        finally:
            os.close(their_out)
            os.close(their_err)

    def _execute(self, local_rank: int, environment: Mapping[str, str]) -> _Child:
        process = subprocess.Popen(
            tethered(self._command, signal.SIGKILL),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        out, err = (os.dup(stream.fileno()) for stream in (process.stdout, process.stderr))
        process.stdout.close()
        process.stderr.close()
        return _Child(local_rank, process.pid, out, err, process)

    @property
    def pids(self) -> dict[int, int]:
        """Local rank to pid, of ranks that have not been reaped."""
        return {child.local_rank: pid for pid, child in self._children.items()}

    def kill(self, signum: int, local_rank: int | None = None) -> None:
        """Signal the process group of every rank that has not been reaped, or only of ``local_rank``."""
        for pid, child in self._children.items():
            if local_rank in (None, child.local_rank):
                _kill_group(pid, signum)
        if self._due is not None and local_rank is None:
            self._unborn = [Reaped(n, 0, signum, "") for n in self._due[1]]
            self._due = None
            self._wake()

    def reap(self) -> list[Reaped]:
        """Reap every ended child, including orphans; return the ranks among them. Starts ranks that have waited for
        the zygote."""
        ended, self._unborn = self._unborn, []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            exit_code = os.waitstatus_to_exitcode(status)
            child = self._children.pop(pid, None)
            if child is not None:
                ended.append(_autopsy(child, exit_code))
            elif isinstance(self._zygote, Zygote):
                self._zygote.reaped(pid, exit_code)
        self._start_due()
        return ended


def _autopsy(child: _Child, exit_code: int) -> Reaped:
    if child.process is not None:
        child.process.returncode = exit_code  # it was reaped here: Popen must not wait for it
    _kill_group(child.pid, signal.SIGKILL)  # data loaders and other children must not outlive their rank
    if child.pump is not None:
        child.pump.join(PIPE_SECONDS)
    code, signum = split_exit_code(exit_code)
    return Reaped(child.local_rank, code, signum, "\n".join(child.tail))


def split_exit_code(exit_code: int) -> tuple[int, int]:
    """(code, signal) of a process. Pure.

    A shell around the script reports a child that signal n ended as 128 + n, which counts as the signal.
    """
    if exit_code < 0:
        return 0, -exit_code
    return (0, exit_code - 128) if exit_code - 128 in _DEADLY else (exit_code, 0)


def _kill_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group has ended
        os.killpg(pid, signum)


def _pump(child: _Child) -> None:
    """Forward a rank's output and keep its last lines."""
    with selectors.DefaultSelector() as selector, os.fdopen(child.out, "rb") as out, os.fdopen(child.err, "rb") as err:
        selector.register(out, selectors.EVENT_READ, _Stream(1, child.tail))
        selector.register(err, selectors.EVENT_READ, _Stream(2, child.tail))
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 65536)
                key.data.feed(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)


class _Stream:
    """One of a rank's two streams: it forwards whole lines, so that lines of several ranks do not mix."""

    def __init__(self, fd: int, tail: deque[str]) -> None:
        self._fd = fd
        self._tail = tail
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        """Process ``chunk``; empty: the stream has ended. A progress bar's carriage return also ends a line."""
        data = self._held + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not chunk or len(data) - cut > HELD_BYTES:
            cut = len(data)
        self._held = data[cut:]
        self._pass_on(data[:cut])
        lines = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in data[:cut].split(b"\n"))
        self._tail.extend(line.decode(errors="replace") for line in lines if line)

    def _pass_on(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader of the output is gone: training continues
            while data:
                data = data[os.write(self._fd, data) :]
