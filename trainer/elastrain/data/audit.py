"""The audit log: the samples that each rank trained on, step by step. ``elastrain_audit`` judges it.

Each rank appends JSON lines to a file of its own in ``$ELASTRAIN_AUDIT_DIR``. The first line of a run of steps
describes the order of the data, so that the judge can compute the expected samples. With a sampler, each line has the
whole global batch instead: the judge then proves that every position of an epoch was consumed exactly once, and that
all ranks had the same batch. Every further line is one step:

``commit``
    this rank's optimizer applied the step.
``adopted``
    this rank computed its part, lost the connection before it could apply the step, and then received the state of a
    peer that had applied it.

A step is applied only after a collective of *all* ranks of its generation. One ``commit`` line therefore proves that
the step contains the parts of all ranks, including ranks that died before they could write.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self, TextIO

import structlog

from elastrain.api import names
from elastrain.api.shape import Divides
from elastrain.data.order import Order
from elastrain.data.share import Place, Share

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """One step of one rank."""

    kind: str
    step: int
    generation: int
    rank: int
    world_size: int
    worker: str
    pid: int
    indices: tuple[int, ...]
    share: Share
    batch: tuple[int, ...] | None = None
    """The global batch, if a sampler made it."""
    span: int = 1
    """Batches of the script that the step has taken."""
    mates: tuple[int, ...] = ()
    """The ranks of its replica that compute the same part of the batch; empty: this one alone does."""


INCOMPLETE = ".incomplete-from-"
"""In the name of a log, before the first step that it lacks: to rename a file needs no room on a full disk."""


class AuditLog:
    """The writer of one rank. Every line is flushed at once, so a killed rank loses no written line.

    A line that cannot be written is the last: training goes on, :attr:`error` says so, and ``elastrain audit`` does.
    """

    def __init__(self, directory: Path, worker: str, local_rank: int, pid: int) -> None:
        """Raises ``OSError`` naming the path if the directory cannot be written."""
        directory.mkdir(parents=True, exist_ok=True)
        self._worker, self._pid = worker, pid
        self.error = ""
        """From which step on the log is incomplete, and why; empty: it has all steps."""
        self._path = directory / f"{worker}.{local_rank}.{pid}.jsonl"
        self._file: TextIO = self._path.open("a", buffering=1)
        self._order: Order | None = None

    @classmethod
    def of_environment(cls, directory: str | None) -> Self | None:
        """The log of this process; None if it writes none."""
        if directory is None:
            return None
        worker, local_rank = os.environ.get(names.ENV_WORKER, "worker"), os.environ.get(names.ENV_LOCAL_RANK, "0")
        return cls(Path(directory), worker, int(local_rank), os.getpid())

    def write(
        self,
        kind: str,
        step: int,
        indices: tuple[int, ...],
        order: Order,
        *,
        place: Place,
        share: Share,
        span: int = 1,
    ) -> None:
        """Append one step. ``place``: of this rank in the generation that computed it. Others: as of :class:`Line`."""
        if self.error:
            return
        sampled = order.steps_per_epoch if order.sampled else None
        text = ""
        if order != self._order:
            self._order = order
            described = {f.name: getattr(order, f.name) for f in fields(order) if f.compare}
            text = json.dumps({"kind": "order", **described, "sampled": sampled}) + "\n"
        generation, rank, world, shape = place
        together = [d.name for d in shape.dimensions if d.divides is not Divides.BATCH]
        mates = tuple(shape.along(rank, *together)) if together else ()
        batch = None if sampled is None else tuple(order.batch(step, span))
        line = Line(kind, step, generation, rank, world, self._worker, self._pid, indices, share, batch, span, mates)
        try:
            self._file.write(text + json.dumps(asdict(line)) + "\n")
        except OSError as e:
            self.error = f"the audit log is incomplete from step {step} on: {self._path}: {e.strerror}"
            log.error(
                "the audit log cannot be written; training goes on", step=step, path=str(self._path), error=str(e)
            )
            with contextlib.suppress(OSError):
                self._path.rename(self._path.with_suffix(f"{INCOMPLETE}{step}.jsonl"))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of the rest of a line that had no room
            self._file.close()
