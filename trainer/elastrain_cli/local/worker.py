"""One worker of a local job: its agent process, its output and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastrain import threads
from elastrain.api import names
from elastrain.api.base import Unreadable
from elastrain.api.records import Outcome, Termination
from elastrain.tether import tethered

STREAM_SECONDS = 1.0
"""Seconds to wait for the output of an ended agent."""


class LocalWorker:
    """An agent in its own session. Ctrl-C in the terminal does not reach it; the end of its runner does."""

    def __init__(
        self,
        name: str,
        ordinal: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        termination_log: Path,
        on_line: Callable[[str, str], None],
        on_end: Callable[[], None],
        start: Callable[..., Any] | None = None,
    ) -> None:
        """Start the agent, by ``start`` in place of ``subprocess.Popen``.

        Call this from a thread that outlives the worker. ``on_line(worker, line)`` gets each line
        of output. ``on_end()`` follows after :attr:`ended` is set. Threads of the worker call both."""
        self.name = name
        self.ordinal = ordinal
        self.leaving = False
        self.trained = False
        self.ended: Termination | None = None
        self.ended_at = 0.0
        self._termination_log, self._environment = termination_log, environment
        self._on_line = on_line
        self._on_end = on_end
        self._process = (start or subprocess.Popen)(
            # SIGTERM: the job drains if elastrain itself is killed.
            tethered([sys.executable, "-m", "elastrain", "agent", "--", *command], signal.SIGTERM),
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threads.start(self._read, name=f"output-{name}")
        threads.start(self._wait, name=f"wait-{name}")

    @property
    def pid(self) -> int:
        """Pid of the agent."""
        return self._process.pid

    def rank_pids(self) -> list[int]:
        """Pids of the agent's ranks, oldest first; empty after the agent has ended."""
        if self.ended is not None:
            return []
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process may end during the read
                state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                # Ranks lead their own sessions; the agent's helper and the children of a dead rank do not.
                if int(parent) == self.pid and session == stat.parent.name and state != "Z":
                    pids.append(int(session))
        return sorted(pids)

    def signal(self, signum: int) -> None:
        """Send ``signum`` to the agent; does nothing if it has ended."""
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    def kill(self, what: str = "worker") -> None:
        """Send SIGKILL to the first ``rank`` with its children, to the ``agent``, or to the whole ``worker``."""
        ranks = self.rank_pids()
        if what == "agent":
            self.signal(signal.SIGKILL)
            return
        if what == "worker":
            self.signal(signal.SIGKILL)
        for pid in ranks[:1] if what == "rank" else ranks:
            with contextlib.suppress(ProcessLookupError):  # the rank died with its agent
                os.killpg(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Pids of all live processes of this worker, its ranks' children included: by the name and the job that they
        have inherited."""
        mine = [f"{key}={self._environment[key]}".encode() for key in (names.ENV_WORKER, names.ENV_JOB_UID)]
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # another user's, or ended meanwhile; that of a zombie is empty
                if set(mine) <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._on_line(self.name, line.decode(errors="replace").rstrip("\r\n"))

    def _wait(self) -> None:
        code = self._process.wait()
        self._reader.join(STREAM_SECONDS)
        self.ended_at = time.monotonic()
        self.ended = read_termination(self._termination_log, code)
        self._on_end()


def read_termination(path: Path, exit_code: int) -> Termination:
    """The agent's termination record. Without one (the agent was killed), a record made from its exit code; a negative
    code is a signal."""
    try:
        return Termination.decode(path.read_bytes())
    except (OSError, Unreadable):
        signum = max(0, -exit_code)
        how = f"was killed by signal {signum}" if signum else f"exited with {exit_code} without a termination record"
        return Termination(
            outcome=Outcome.FAILED,
            exit_code=exit_code if exit_code >= 0 else 128 + signum,
            signal=signum,
            reason="AgentKilled",
            message=f"the agent {how}",
        )
