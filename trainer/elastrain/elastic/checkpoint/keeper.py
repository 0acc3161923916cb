"""The owner of a job's checkpoints: it saves them beside training, and loads the newest at a cold start."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from elastrain.api.records import CheckpointState
from elastrain.elastic.checkpoint.division import ALONE, WHOLE, Cut, Writers, divided
from elastrain.elastic.checkpoint.kept import KeptState
from elastrain.elastic.checkpoint.levels import Level
from elastrain.elastic.checkpoint.resume import ColdStart, Ranks, survey
from elastrain.elastic.checkpoint.rules import BUSY, Checkpoint, wanted
from elastrain.elastic.state.host_copy import Copied, HostCopy

_REMIND_SECONDS = 60.0
FINISH_SECONDS = 300.0
"""Longest wait of an ending rank for its running saves. The agent's limit is usually shorter: a drained worker has its
grace period, less 5 s."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves and loads the checkpoints of one job; without ``spec.checkpoint`` it does neither.

    Every rank has one, and rank 0 saves, to each tier that is due, in a thread for each. The next save begins when all
    have ended. A failed save does not stop training: :attr:`result` reports it, and the next interval tries again. The
    ranks of a sharded model save together: each its part, after a step on which all have agreed. Memory: one copy of
    the state, from the first save to :meth:`forget`.
    """

    def __init__(self, levels: Sequence[Level] = (), kept: KeptState | None = None) -> None:
        """``levels``: the fastest tier first (:func:`~elastrain.elastic.checkpoint.levels.levels_of`).

        ``kept``: where a process that starts again keeps its state (:meth:`keep`); default: nowhere.
        """
        self._levels, self.kept = list(levels), kept or KeptState()
        self.lineage = ""
        """The lineage of the training state in memory (:mod:`elastrain.elastic.checkpoint.tier`). It travels with the
        state."""
        self.result: CheckpointState | None = None
        """The newest checkpoint and the last save, for the job's status; None if this rank knows of none."""
        self._reporting = threading.Lock()
        self._copy = HostCopy()
        self._together = 0, 0
        """Step and generation of the last save that all ranks have agreed on."""

    @property
    def saves_durably(self) -> bool:
        """Whether the job has checkpoints that outlive its pods."""
        return bool(self._levels)

    # -- load --------------------------------------------------------------------------------------------------------
    def resume(
        self,
        load: Callable[[Any], None],
        *,
        saved_step: int,
        reached: int,
        partial_state: str = "",
        newest: int | None = None,
        ranks: Ranks | None = None,
        cut: Cut = WHOLE,
    ) -> list[int]:
        """Load the newest checkpoint that can be read, by ``load(tree)``, and begin a new lineage.

        For all ranks of a cold start, a generation in which no rank holds state. ``ranks``: default: this one alone.
        ``newest``: step of the newest that counts; None: all do. ``cut``: the part of the state that this rank loads,
        if it does. Returns the ranks that hold the state then, by
        shard: those that have loaded, or the first ones if the job begins at step 0. Raises as of
        :class:`~elastrain.elastic.checkpoint.resume.ColdStart`.
        """
        self._wait(FINISH_SECONDS)  # a process that has lost its state may be saving it
        start = ColdStart(self._levels, ranks or Ranks(), cut, newest)
        tree, sources = start.choose(saved_step=saved_step, reached=reached, partial_state=partial_state)
        if tree is not None:
            load(tree)
        self.lineage, self.result = start.lineage, start.result
        return sources

    def take_over(self) -> None:
        """This rank is rank 0 now: learn, in a thread, which checkpoint is the newest. It belongs into reports."""
        if self._levels and self.result is None and not self._levels[0].busy:
            self._levels[0].run(self._look_up)

    def _look_up(self) -> None:
        tier = self._levels[0].tier
        try:
            newest = next(iter(tier.complete()), None)
        except OSError as e:
            log.warning("checkpoints cannot be read", path=tier.where, error=str(e))
            return
        if newest is not None:
            self._report(step=newest.step, path=newest.path)

    def newest_step(self) -> int:
        """Committed steps of the newest checkpoint that this rank sees; 0 if there is none."""
        found = [checkpoint for _, checkpoint in survey(self._levels)[0]]
        found += filter(None, [self.kept.newest()])
        newest = max(found, key=lambda c: c.order, default=None)
        return newest.step if newest is not None else 0

    # -- save --------------------------------------------------------------------------------------------------------
    def after_step(self, step: int, generation: int, tree: Callable[[], Any]) -> None:
        """Begin to save ``tree()`` where a save is due after ``step`` committed steps, and none runs. For rank 0."""
        self.after_vote(self.vote(step, leads=True), step, generation, tree, ALONE)

    # -- by all ranks together -----------------------------------------------------------------------------------------
    def vote(self, step: int, *, leads: bool) -> int:
        """This rank's part of the sum by which all ranks decide whether to save together after ``step`` committed
        steps (:func:`~elastrain.elastic.checkpoint.rules.wanted`). ``leads``: this is rank 0."""
        if any(self._hangs(level) or level.busy for level in self._levels):
            return BUSY
        now, votes, before = time.monotonic(), 0, False
        for number, level in enumerate(self._levels if leads else ()):
            before = level.due(step, now, before=before)
            votes |= before << number
        return votes

    def after_vote(self, votes: int, step: int, generation: int, tree: Callable[[], Any], writers: Writers) -> None:
        """Begin to save this rank's part of ``tree()`` to the tiers that all ranks have agreed on."""
        levels = [self._levels[number] for number in wanted(votes, len(self._levels))]
        if not levels:
            return
        if writers.attempt:
            self._together = step, generation
        self._begin(levels, step, generation, self._copy.take(divided(tree(), writers)), writers)

    def saved_together(self, step: int, generation: int) -> bool | None:
        """Whether the save after ``step`` is complete on which all ranks have agreed, as rank 0 knows it; waits for its
        end. None: they have agreed on none."""
        if self._together != (step, generation):
            return None
        self._wait()
        return self.result is not None and self.result.step == step and not self.result.error

    # -- in the background -----------------------------------------------------------------------------------------
    def _begin(self, levels: Sequence[Level], step: int, generation: int, copied: Copied, writers: Writers) -> None:
        checkpoint = Checkpoint(step, generation, self.lineage, "")
        for level in levels:
            level.attempt(step, time.monotonic())
            level.run(partial(self._save, copied.complete, checkpoint, level, writers))

    def _save(self, state: Callable[[], Any], checkpoint: Checkpoint, level: Level, writers: Writers) -> None:
        """``state()``: waits for what is under way. The rank that commits reports the outcome."""
        began, tier, step = time.monotonic(), level.tier, checkpoint.step
        how: Any = {"step": step, "generation": checkpoint.generation, "lineage": checkpoint.lineage}
        try:
            saved = tier.save(state(), **how, pace=level.pace, writers=writers)
        except Exception as e:
            log.error("checkpoint failed", step=step, tier=tier.name, path=tier.where, error=str(e))
            if writers.commits:
                self._note(level, error=f"saving step {step} to {tier.where}: {e}")
            return
        seconds = round(time.monotonic() - began, 2)
        if saved is None:
            log.info("part of a checkpoint saved", step=step, tier=tier.name, seconds=seconds)
        else:
            log.info("checkpoint saved", step=step, tier=tier.name, path=saved.path, seconds=seconds)
            self._note(level, saved)

    def _note(self, level: Level, saved: Checkpoint | None = None, error: str = "") -> None:
        """Change the report after an attempt."""
        if level is self._levels[0]:
            self._report(error=error, **({"step": saved.step, "path": saved.path, "resumed": None} if saved else {}))
        else:
            self._report(archive_error=error, **({"archived_step": saved.step} if saved else {}))

    def _report(self, **changes: Any) -> None:
        with self._reporting:
            self.result = (self.result or CheckpointState()).model_copy(update=changes)

    def save_now(self, step: int, generation: int, tree: Callable[[], Any], writers: Writers = ALONE) -> bool:
        """Save ``tree()`` durably and return when the save is done or has failed; waits for running saves first.

        ``writers``: all of them call it. Returns False, at once, for a job without checkpoints.
        """
        if not self._levels:
            return False
        self._wait()
        mine = divided(tree(), writers)  # an error in it is the script's
        self._begin(self._levels, step, generation, Copied(mine), writers)
        self._wait()
        return True

    def keep(self, step: int, generation: int, tree: Callable[[], Any], writers: Writers = ALONE) -> bool:
        """Keep ``tree()`` for the next process, and return whether it is there: this one starts again."""
        self._wait(FINISH_SECONDS)
        return self.kept.save(Copied(tree()).complete(), step, generation, self.lineage, writers)

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Return when the running saves have ended, or after ``seconds``.

        Their threads end with the process. Without this, a long save would never be complete if each writer is drained.
        """
        if any(level.busy for level in self._levels):
            log.info("the process ends after its running save", most_seconds=seconds)
        self._wait(seconds)

    def _wait(self, seconds: float = math.inf) -> None:
        """Return when all threads have ended, or after ``seconds``.

        A save that makes no progress for :data:`FINISH_SECONDS` is not awaited, and is reported.
        """
        end = time.monotonic() + seconds
        for level in self._levels:
            level.pace.hurry()
            while level.alive and (left := min(end, level.pace.moved + FINISH_SECONDS) - time.monotonic()) > 0:
                log.info("waiting for a running save", tier=level.tier.name, path=level.tier.where, seconds=round(left))
                level.join(min(left, _REMIND_SECONDS))
            self._hangs(level)

    def _hangs(self, level: Level) -> bool:
        """Whether a save makes no progress; reports it."""
        if hangs := level.alive and time.monotonic() >= level.pace.moved + FINISH_SECONDS:
            self._note(level, error=f"a save to {level.tier.where} makes no progress: does its volume hang?")
        return hangs

    def forget(self) -> None:
        """This rank is not rank 0: its report is void. Release the copy of the state, unless this rank saves all the
        same; a running save releases it when it ends."""
        self.result = None
        if self._together == (0, 0):
            self._copy.forget()
