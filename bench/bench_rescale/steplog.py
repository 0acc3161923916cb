"""The step log: one JSON line per event of a training process, and the only source of the figures.

Times are ``time.monotonic()``, which all processes of one Linux machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ENV_LOGS = "RESCALE_BENCH_LOGS"
ENV_NODE = "RESCALE_BENCH_NODE"
ENV_CHECKPOINT = "RESCALE_BENCH_CHECKPOINT"
"""A file; for systems whose checkpoints are the script's business."""
ENV_CHECKPOINT_EVERY = "RESCALE_BENCH_CHECKPOINT_EVERY"
ENV_SHARDING = "RESCALE_BENCH_SHARDING"
"""How ``train_dcp`` shards the model."""
ENV_SHARDS = "RESCALE_BENCH_SHARDS"
"""Parts of the data; for systems that cut it by a fixed number."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one training process.

    ``start``: the process runs. ``begin``: it begins to compute the step that follows ``step`` committed ones.
    ``commit``: its optimizer has applied a step, ``step`` now counts it.
    """

    kind: Literal["start", "begin", "commit"]
    at: float
    node: int
    pid: int
    step: int = 0
    world: int = 0
    """Ranks that the step was computed by (``commit`` only, as are the following)."""
    rank: int = 0
    first: int = 0
    """The process computed the samples at ``first`` to ``first + count - 1`` of an endless stream; where the data
    has another order (elastrain), ``count`` is 0 and the system's own audit log tells."""
    count: int = 0


class StepLog:
    """Writer, one per training process. Lines are flushed at once: a killed process loses none that it wrote."""

    def __init__(self) -> None:
        self._node, self._pid = int(os.environ[ENV_NODE]), os.getpid()
        path = Path(os.environ[ENV_LOGS]) / f"{self._node}-{self._pid}.jsonl"
        self._file = path.open("a", buffering=1)
        self._write(Line("start", time.monotonic(), self._node, self._pid))

    def begin(self, step: int) -> None:
        """The step after ``step`` committed ones begins."""
        self._write(Line("begin", time.monotonic(), self._node, self._pid, step))

    def commit(self, step: int, *, world: int, rank: int, first: int = 0, count: int = 0) -> None:
        """``step`` steps are committed."""
        self._write(Line("commit", time.monotonic(), self._node, self._pid, step, world, rank, first, count))

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(asdict(line)) + "\n")


class StepLogs:
    """Reader of all the logs of a run while they grow."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[Path, int] = {}
        self.lines: list[Line] = []
        """All lines read so far; in order of time for each process."""

    def poll(self) -> list[Line]:
        """Read what is new and return all :attr:`lines`. A line that is being written is left for the next time."""
        for path in sorted(self.directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            if newline:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                self.lines += parse(whole.decode().split("\n"))
        return self.lines


def parse(raw: Iterable[str]) -> list[Line]:
    """Lines of one log."""
    return [Line(**json.loads(line)) for line in raw]
