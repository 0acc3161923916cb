"""One run: train with checkpoints, kill everything, start again from the newest one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bench_checkpoint.analysis import RunFigures, save_figures
from bench_checkpoint.systems import LEASE_TTL, System
from bench_harness.agents import base_environment, worker
from bench_harness.names import ENV_STATE_MIB
from bench_harness.processes import Processes
from bench_harness.program import Failed
from bench_rescale.steplog import ENV_LOGS, ENV_NODE, Line, StepLogs

POLL_SECONDS = 0.01
GONE_SECONDS = LEASE_TTL + 1.0


class Watcher(Protocol):
    """Hears of the progress of a run."""

    def waiting(self, what: str) -> None:
        """The run waits for ``what``."""


@dataclass(slots=True)
class Run:
    """One run of one system. Use once, from the main thread."""

    name: str
    system: System
    saves: int
    """Checkpoints of the training; the first one does not count."""
    state_mib: int
    limit: float
    """Seconds that each part may take."""
    watcher: Watcher
    _complete: dict[int, float] = field(default_factory=dict)
    """When the checkpoint of a step was seen complete."""

    def figures(self) -> RunFigures:
        """Raises :class:`Failed`."""
        with self.system:
            logs = self._logs("training")
            start = self._train(logs, lambda: self._saved_enough(logs))
            nbytes = sum(f.stat().st_size for f in self.system.complete()[max(self._complete)].rglob("*"))
            commits = {line.step: line.at for line in logs.lines if line.kind == "commit" and line.rank == 0}
            self.watcher.waiting("the killed members to be gone")
            time.sleep(GONE_SECONDS)
            newest = max(self.system.complete())
            again = self._logs("resumed")
            resume = self._train(again, lambda: bool(_commits(again)))
            if (first := _commits(again)[0].step) != newest + 1:
                raise Failed(f"{self.name}: went on with step {first}, the newest checkpoint was of step {newest}")
        try:
            found = save_figures(commits, self._complete)
        except ValueError as error:
            raise Failed(f"{self.name}: {error}; see {self.system.directory}") from None
        return RunFigures(system=self.name, state_bytes=nbytes, start=start, resume=resume, **found.model_dump())

    def _logs(self, part: str) -> StepLogs:
        directory = self.system.directory / part
        directory.mkdir(parents=True)
        return StepLogs(directory)

    def _train(self, logs: StepLogs, until: Callable[[], bool]) -> float:
        """Start the ranks, and ``kill -9`` them when ``until()``. Returns the seconds until the first step."""
        own = {ENV_LOGS: str(logs.directory), ENV_STATE_MIB: str(self.state_mib)}
        processes = Processes(logs.directory, base_environment() | own)
        numbers = range(self.system.nodes)
        began = time.monotonic()
        try:
            for number in numbers:
                command, environment = self.system.node(number)
                processes.start(worker(number), command, environment | {ENV_NODE: str(number)})
            self.watcher.waiting(f"steps ({logs.directory.name})")
            while not until():
                logs.poll()
                gone = [worker(number) for number in numbers if not processes.runs(worker(number))]
                if gone or time.monotonic() > began + self.limit:
                    why = f"{', '.join(gone)} has ended" if gone else f"not done within {self.limit:g} s"
                    raise Failed(f"{self.name}: {why}; see {logs.directory}")
                time.sleep(POLL_SECONDS)
        finally:
            processes.end(spare=self.system.service_pids)
        return _commits(logs)[0].at - began

    def _saved_enough(self, logs: StepLogs) -> bool:
        """Whether the steps during the last save are complete, too."""
        now = time.monotonic()
        for step in self.system.complete():
            self._complete.setdefault(step, now)
        if len(self._complete) < self.saves:
            return False
        last = max(self._complete)
        return any(line.step > last and line.at > self._complete[last] for line in _commits(logs))


def _commits(logs: StepLogs) -> list[Line]:
    """Of all ranks, in order of time."""
    return sorted((line for line in logs.poll() if line.kind == "commit"), key=lambda line: line.at)
