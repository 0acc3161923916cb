"""One worker of a local job: an agent process, what it prints and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from elastrain.api.records import Outcome, Termination
from elastrain.tether import tethered

STREAM_SECONDS = 1.0
"""How long the output of an ended agent is waited for."""


class LocalWorker:
    """An agent in a session of its own: Ctrl-C in the terminal does not reach it, the death of its runner does."""

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
    ) -> None:
        """Start it. Call from a thread that lives as long as the worker. ``on_line(worker, line)`` gets what is
        printed, ``on_end()`` is called after :attr:`ended` is set; both from a thread of the worker."""
        self.name = name
        self.ordinal = ordinal
        self.leaving = False
        self.trained = False
        self.ended: Termination | None = None
        self.ended_at = 0.0
        self._termination_log = termination_log
        self._on_line = on_line
        self._on_end = on_end
        self._process = subprocess.Popen(
            # SIGTERM: if elastrain itself is killed, the job drains.
            tethered([sys.executable, "-m", "elastrain", "agent", "--", *command], signal.SIGTERM),
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output-{name}", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name=f"wait-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the agent."""
        return self._process.pid

    def rank_pids(self) -> list[int]:
        """Pids of the ranks that the agent runs, oldest first; empty when it has ended."""
        if self.ended is not None:
            return []
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended while we looked
                state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                # Ranks lead sessions of their own; the agent's helper and what a dead rank has left behind do not.
                if int(parent) == self.pid and session == stat.parent.name and state != "Z":
                    pids.append(int(session))
        return sorted(pids)

    def signal(self, signum: int) -> None:
        """Send ``signum`` to the agent; nothing happens if it has ended."""
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    def kill(self, what: str = "worker") -> None:
        """``kill -9`` of a ``rank`` (its first, with its children), the ``agent``, or the whole ``worker`` at once."""
        ranks = self.rank_pids()
        if what == "agent":
            self.signal(signal.SIGKILL)
            return
        if what == "worker":
            self.signal(signal.SIGKILL)
        for pid in ranks[:1] if what == "rank" else ranks:
            with contextlib.suppress(ProcessLookupError):  # it died with its agent
                os.killpg(pid, signal.SIGKILL)

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
    """An agent's last words, or what its exit code says if it left none (it was killed). Negative codes are signals."""
    try:
        return Termination.decode(path.read_bytes())
    except (OSError, ValidationError):
        signum = max(0, -exit_code)
        how = f"was killed by signal {signum}" if signum else f"exited with {exit_code} without a word"
        return Termination(
            outcome=Outcome.FAILED,
            exit_code=exit_code if exit_code >= 0 else 128 + signum,
            signal=signum,
            reason="AgentKilled",
            message=f"the agent {how}",
        )
