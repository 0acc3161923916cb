"""Ranks as threads of the test, each with its own :class:`elastrain.Job`, under the played agents of ``played_ranks``.

No process starts: a job of two ranks takes a fraction of a second. Randomness of torch belongs to the process, so that
scripts draw none in their loop bodies.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bench_harness import played_ranks
from elastrain.api import heartbeat, names
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.batching import batch_of
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import Session
from elastrain.elastic.job import Job

Script = Callable[[Job], Any]


class Thread:
    """With the interface of a process: it ends with 0, or with 1 after an exception."""

    pid = 0

    def __init__(self, script: Script, path: str, output: BinaryIO) -> None:
        self.error: BaseException | None = None
        self.result: Any = None
        self._script, self._path, self._output = script, path, output
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            session = Session(self._path, 0)
            batch = batch_of(session.welcome.settings.batch)
            beat = Heartbeat(heartbeat.path_of(self._path, 0))
            with Job(session, strategy_for("exact", session, batch.small), beat, None, batch) as job:
                self.result = self._script(job)
        except BaseException as e:
            self.error = e
            self._output.write(traceback.format_exc().encode())
        finally:
            self._output.close()

    def poll(self) -> int | None:
        if self._thread.is_alive():
            return None
        return 0 if self.error is None or getattr(self.error, "code", 1) == 0 else 1

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        assert self.poll() is not None, "the rank has not ended"
        return self.poll() or 0

    def send_signal(self, signum: int) -> None:
        """A thread cannot be killed; the test ends its connections."""
        assert signum == signal.SIGKILL

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Threads:
    """Starts ``script``; as of :class:`played_ranks.Starter`."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def start(self, command: Sequence[str], env: Mapping[str, str], output: BinaryIO) -> Thread:
        return Thread(self.script, env[names.ENV_AGENT_SOCKET], output)


class World(played_ranks.World):
    """The ranks of one test, which run ``script(job)``."""

    def __init__(self, folder: Path, script: Script) -> None:
        super().__init__(folder, Threads(script))

    def start(self, *ranks: str, **options: Any) -> None:
        super().start(*ranks, script=Path("script"), **options)

    def train(self, *ranks: str) -> None:
        """Start them, and the first generation."""
        self.start(*ranks)
        self.ready(*ranks)
        self.propose(*ranks)

    def serve(self, *ranks: str) -> None:
        """Propose a new generation of all ``ranks`` whenever one has broken, until they have ended."""

        def all_ended() -> bool:
            if any(self.ranks[r].has("broken", generation=self.number) for r in ranks):
                self.propose(*ranks, reason="Broken")
            return all(self.ranks[r].process.poll() is not None for r in ranks)

        self.wait(f"{ranks} end", all_ended)

    def result(self, rank: str) -> Any:
        process = self.ranks[rank].process
        assert isinstance(process, Thread)
        return process.result
