"""The tiers of a job's checkpoints on one rank, each with its interval, its thread and the pace of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from elastrain import threads
from elastrain.api import names
from elastrain.api.settings import CheckpointSpec, Interval, Shards
from elastrain.elastic.checkpoint.folder import Pace
from elastrain.elastic.checkpoint.rules import due
from elastrain.elastic.checkpoint.store import DirectoryStore
from elastrain.elastic.checkpoint.tier import MEMORY, Tier, tier_at


class Level:
    """One tier. At most one thread works for it at a time."""

    def __init__(self, tier: Tier, interval: Interval | None) -> None:
        """``interval``: None: due whenever the level before it is."""
        self.tier, self._interval = tier, interval
        self.pace = Pace()
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._thread: threads.Thread | None = None

    @property
    def is_memory(self) -> bool:
        """Whether it ends with the worker's pod."""
        return not self.tier.outlives_pods

    @property
    def busy(self) -> bool:
        """Whether a thread works for it. One that waits for the parts of other ranks does not."""
        return self._thread is not None and self._thread.is_alive() and not self.pace.waits

    def due(self, step: int, now: float, *, before: bool) -> bool:
        """Whether to save after ``step`` committed steps. ``before``: whether the level before it is due."""
        if self._interval is None:
            return before
        every = self._interval.every_steps, self._interval.every_seconds
        return due(*every, step=step, saved_step=self._saved_step, now=now, saved_at=self._saved_at)

    def attempt(self, step: int, now: float) -> None:
        """A save begins, successful or not. The one before waits for no part any more."""
        self.pace.end()
        self._saved_step, self._saved_at, self.pace = step, now, Pace()

    def run(self, work: Callable[[], object]) -> None:
        """Start a thread, which waits for the one before."""
        before = self._thread

        def after() -> None:
            if before is not None:
                before.join()
            work()

        self._thread = threads.start(after, name=f"elastrain-{self.tier.name}")

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(seconds)


def levels_of(spec: CheckpointSpec | None, memory: Path | None = None, shards: Shards = 1) -> list[Level]:
    """The levels of a job, the fastest first. ``memory``: this rank's directory in its node's memory, if it has one.

    ``shards``: of the model. While some ranks save a step to their memory, others may have done so: of a sharded model
    the step before is kept too.

    Raises ``RuntimeError`` if the library for an object store is not installed.
    """
    if spec is None:
        return []
    levels = [Level(tier_at(spec.path, spec.keep), spec)]
    if spec.memory is not None and memory is not None:
        levels.insert(0, memory_level(memory, spec.memory, keep=1 if shards == 1 else 2))
    if (archive := spec.archive) is not None:
        own = archive if archive.every_steps or archive.every_seconds else None
        levels.append(Level(tier_at(archive.path, archive.keep), own))
    return levels


def memory_level(memory: Path, interval: Interval | None, *, keep: int) -> Level:
    """The level in the directory ``memory`` of the node's memory."""
    return Level(Tier(MEMORY, DirectoryStore(memory), keep=keep), interval)


def kept_memory(environment: Mapping[str, str], shards: Shards = 1) -> Path | None:
    """Where this rank keeps its state while its process starts again; None: nowhere.

    Of a model without shards any rank of a worker can, since the others may be lost. Of one copy over all ranks
    (``shards`` is "all") none does: a part is lost with any rank.
    """
    local = environment.get(names.ENV_LOCAL_RANK, "0") if shards != 1 else "0"
    return None if shards == "all" else node_memory({**environment, names.ENV_LOCAL_RANK: local}, shards)


def node_memory(environment: Mapping[str, str], shards: Shards = 1) -> Path | None:
    """Where this rank saves to its node's memory; None: it does not, or is no worker of a job.

    Of each worker the first rank does, and of a sharded model each rank. The worker's agent deletes it at its end.
    """
    uid, worker = environment.get(names.ENV_JOB_UID), environment.get(names.ENV_WORKER)
    local = environment.get(names.ENV_LOCAL_RANK, "0")
    if not uid or not worker or (shards == 1 and local != "0"):
        return None
    folder = Path(names.node_memory(uid)) / worker
    return folder if shards == 1 else folder / local
