"""The owner of a job's checkpoints: it saves them beside training, and loads the newest at a cold start."""

from __future__ import annotations

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

FINISH_SECONDS = 300.0
"""Longest wait of an ending rank for its running saves. The agent's limit is usually shorter: a drained worker has its
grace period, less 5 s."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves and loads the checkpoints of one job; without ``spec.checkpoint`` it does neither.

    Every rank has one, and rank 0 saves. A checkpoint is written to the fastest tier, and copied from there to the
    slower ones that are due. Each tier has at most one save at a time, in a thread. A failed save does not stop
    training: :attr:`result` reports it, and the next interval tries again. The ranks of a sharded model save together:
    each its part, to each tier, after a step on which all have agreed. Memory: one copy of the state, from the first
    save to :meth:`forget`.
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
        if not self._levels or self._levels[0].busy:
            return
        now, ready, before = time.monotonic(), list[Level](), False
        for level in self._levels:
            before = level.due(step, now, before=before) and not level.busy
            ready += [level] * before
        if not ready:
            return
        fastest, slower = self._levels[0], [level for level in ready if level is not self._levels[0]]
        for level in {id(x): x for x in (fastest, *ready)}.values():
            level.attempt(step, now)
        copy, checkpoint = self._copy.take(tree()), Checkpoint(step, generation, self.lineage, "")
        fastest.run(lambda: self._spread(copy.complete, checkpoint, fastest, slower))

    # -- by all ranks together -----------------------------------------------------------------------------------------
    def vote(self, step: int, *, leads: bool) -> int:
        """This rank's part of the sum by which all ranks decide whether to save together after ``step`` committed
        steps (:func:`~elastrain.elastic.checkpoint.rules.wanted`). ``leads``: this is rank 0."""
        if any(level.busy for level in self._levels):
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
        self._together = step, generation
        for level in levels:
            level.attempt(step, time.monotonic())
        copy = self._copy.take(divided(tree(), writers))
        checkpoint = Checkpoint(step, generation, self.lineage, "")
        for level in levels:
            level.run(partial(self._save, copy.complete, checkpoint, level, writers))

    # -- in the background -----------------------------------------------------------------------------------------
    def _spread(
        self, state: Callable[[], Any], checkpoint: Checkpoint, fastest: Level, slower: Sequence[Level]
    ) -> None:
        """Save to the fastest tier, and copy from there."""
        saved = self._save(state, checkpoint, fastest)
        if saved is not None:
            for level in slower:
                level.run(partial(self._promote, saved, fastest, level))

    def _save(
        self, state: Callable[[], Any], checkpoint: Checkpoint, level: Level, writers: Writers = ALONE
    ) -> Checkpoint | None:
        """``state()``: waits for what is under way."""

        def write() -> Checkpoint | None:
            return level.tier.save(
                state(),
                step=checkpoint.step,
                generation=checkpoint.generation,
                lineage=checkpoint.lineage,
                pace=level.pace,
                writers=writers,
            )

        return self._attempt("saving", checkpoint.step, level, write, reports=writers.commits)

    def _promote(self, saved: Checkpoint, source: Level, level: Level) -> None:
        self._attempt("copying", saved.step, level, lambda: level.tier.copy(saved, source.tier, level.pace))

    def _attempt(
        self, what: str, step: int, level: Level, write: Callable[[], Checkpoint | None], *, reports: bool = True
    ) -> Checkpoint | None:
        """Returns the checkpoint; None on a rank that does not commit it, and after a failure.

        ``reports``: this rank reports a failure. The one that commits does.
        """
        began, tier = time.monotonic(), level.tier
        try:
            saved = write()
        except Exception as e:
            log.error("checkpoint failed", step=step, tier=tier.name, path=tier.where, error=str(e))
            if reports:
                self._note(level, error=f"{what} step {step} to {tier.where}: {e}")
            return None
        seconds = round(time.monotonic() - began, 2)
        if saved is None:
            log.info("part of a checkpoint saved", step=step, tier=tier.name, seconds=seconds)
            return None
        log.info("checkpoint saved", step=step, tier=tier.name, path=saved.path, seconds=seconds)
        self._note(level, saved)
        return saved

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
        self._wait(None)
        if self._together == (step, generation):
            return True  # all ranks know: none of them writes it again
        first, *others = self._levels
        checkpoint = Checkpoint(step, generation, self.lineage, "")
        together = bool(writers.attempt)
        for level in self._levels if together else [first]:
            level.attempt(step, time.monotonic())
            level.pace.hurry()
            mine = divided(tree(), writers) if together else tree()  # an error in it is the script's
            saved = self._save(Copied(mine).complete, checkpoint, level, writers)
        for level in () if together else others:
            if saved is not None:
                level.pace.hurry()
                self._promote(saved, first, level)
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

    def _wait(self, seconds: float | None) -> None:
        """For all threads; the fastest level's starts those of the others."""
        end = None if seconds is None else time.monotonic() + seconds
        for level in self._levels:
            level.pace.hurry()
        for level in self._levels:
            level.join(None if end is None else max(0.0, end - time.monotonic()))

    def forget(self) -> None:
        """This rank is not rank 0: its report is void. Release the copy of the state, unless this rank saves all the
        same; a running save releases it when it ends."""
        self.result = None
        if self._together == (0, 0):
            self._copy.forget()
