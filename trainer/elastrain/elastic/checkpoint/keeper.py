"""The owner of a job's checkpoints: it saves them beside training, and loads the newest at a cold start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from elastrain.api.records import CheckpointState, Resumed
from elastrain.elastic.checkpoint.cold_start import Evidence, why_stop
from elastrain.elastic.checkpoint.decide import Checkpoint, newest_first
from elastrain.elastic.checkpoint.levels import Level
from elastrain.elastic.checkpoint.tier import Tier, Unreadable
from elastrain.elastic.state import capture

FINISH_SECONDS = 300.0
"""Longest wait of an ending rank for its running saves. The agent's limit is usually shorter: a drained worker has its
grace period, less 5 s."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves and loads the checkpoints of one job; without ``spec.checkpoint`` it does neither.

    Every rank has one, and rank 0 saves; with the node's memory as a tier, one rank of each worker saves to it. A
    checkpoint is written to the fastest tier, and copied from there to the slower ones that are due. Each tier has at
    most one save at a time, in a thread. A failed save does not stop training: :attr:`result` reports it, and the next
    interval tries again. Memory: one copy of the state, from the first save to :meth:`forget`.
    """

    def __init__(self, levels: Sequence[Level] = ()) -> None:
        """``levels``: the fastest tier first (:func:`~elastrain.elastic.checkpoint.levels.levels_of`)."""
        self._levels = list(levels)
        self._durable = [level for level in levels if not level.is_memory]
        self.lineage = ""
        """The lineage of the training state in memory (:mod:`elastrain.elastic.checkpoint.tier`). It travels with the
        state."""
        self.result: CheckpointState | None = None
        """The newest checkpoint and the last save, for the job's status; None if this rank knows of none."""
        self._reporting = threading.Lock()
        self._copy: Any = None

    # -- load --------------------------------------------------------------------------------------------------------
    def resume(self, load: Callable[[Any], None], *, saved_step: int, reached: int, torn: bool) -> None:
        """Load the newest checkpoint that can be read, by ``load(tree)``, and begin a new lineage.

        For one rank of a cold start, a generation in which no rank holds state. Without a checkpoint the job begins at
        step 0. Raises ``RuntimeError`` if it must not (:func:`~elastrain.elastic.checkpoint.cold_start.why_stop`, which
        describes the arguments), the errors of ``load``, and ``OSError`` if ``spec.checkpoint.path`` cannot be read or
        written.
        """
        before = self._durable[0].tier.lineage if self._durable else None
        surveys, unreadable = self._survey()
        found = _load_newest(surveys, unreadable, load)
        if found is None:
            self._may_begin(before, unreadable, saved_step=saved_step, reached=reached, torn=torn)
        if not self._durable:
            return
        self._begin_lineage(before, {c.lineage for _, complete in surveys for c in complete})
        where = self._durable[0].tier.where
        if found is None:
            log.info("no checkpoint yet, training begins at step 0", path=where, repeated=reached)
            return
        for one in unreadable:
            if one.name:
                one.tier.set_aside(one.name)
        tier, loaded = found
        log.info("resumed from checkpoint", tier=tier.name, path=loaded.path, step=loaded.step, lineage=loaded.lineage)
        if loaded.step < saved_step:
            log.warning("newer checkpoints are lost", step=loaded.step, newest=saved_step, path=where)
        bad = [(one.tier, one.name) for one in unreadable]
        readable = ((surveys[i][0], c) for i, c in newest_first([complete for _, complete in surveys]))
        durable = next((c for t, c in readable if t.outlives_pods and (t, c.name) not in bad), None)
        self.result = CheckpointState(
            step=durable.step if durable else 0,
            path=durable.path if durable else "",
            resumed=Resumed(step=loaded.step, tier=tier.name, path=loaded.path),
        )

    def _survey(self) -> tuple[list[tuple[Tier, list[Checkpoint]]], list[Unreadable]]:
        """The complete checkpoints of each tier, and what cannot be read.

        Raises ``OSError`` for ``spec.checkpoint.path``: without it no lineage can begin.
        """
        surveys, unreadable = [], list[Unreadable]()
        for level in self._levels:
            try:
                complete, damaged = level.tier.survey()
            except OSError as e:
                if level is self._durable[0]:
                    raise
                log.warning("checkpoints of a tier cannot be read", tier=level.tier.name, error=str(e))
                complete, damaged = [], [Unreadable(level.tier, "", str(e))]
            surveys.append((level.tier, complete))
            unreadable += damaged
        return surveys, unreadable

    def _may_begin(
        self, before: str | None, unreadable: Sequence[Unreadable], *, saved_step: int, reached: int, torn: bool
    ) -> None:
        """No checkpoint was loaded. Raises ``RuntimeError`` if training must not begin at step 0."""
        path = " and ".join(level.tier.where for level in self._durable) or None
        tried = tuple((one.name or one.tier.where, one.reason) for one in unreadable if one.tier.outlives_pods)
        if why := why_stop(Evidence(path, before is not None, tried, saved_step, reached, torn)):
            raise RuntimeError(why)

    def _begin_lineage(self, before: str | None, seen: set[str]) -> None:
        """In all tiers that can be written; a save takes over the others."""
        first, others = self._durable[0].tier, [x.tier for x in self._levels if x is not self._durable[0]]
        away = list[Tier]()
        for tier in others:
            try:
                seen.add(tier.lineage or "")
            except OSError as e:
                log.warning("checkpoints of a tier cannot be read", tier=tier.name, error=str(e))
                away.append(tier)
        self.lineage = first.begin_lineage(before, seen)
        for tier in others:
            try:
                if tier not in away:
                    tier.adopt(self.lineage)
            except OSError as e:
                log.warning("checkpoints of a tier cannot be written", tier=tier.name, error=str(e))

    def take_over(self) -> None:
        """This rank is rank 0 now: learn, in a thread, which checkpoint is the newest. It belongs into reports."""
        if self._durable and self.result is None and not self._durable[0].busy:
            self._durable[0].run(self._look_up)

    def _look_up(self) -> None:
        tier = self._durable[0].tier
        try:
            newest = next(iter(tier.complete()), None)
        except OSError as e:
            log.warning("checkpoints cannot be read", path=tier.where, error=str(e))
            return
        if newest is not None:
            self._report(step=newest.step, path=newest.path)

    def newest_step(self) -> int:
        """Committed steps of the newest checkpoint; 0 if there is none."""
        if not self._levels:
            return 0
        surveys, _ = self._survey()
        return next((c.step for _, c in newest_first([complete for _, complete in surveys])), 0)

    # -- save --------------------------------------------------------------------------------------------------------
    def after_step(self, step: int, generation: int, tree: Callable[[], Any], *, leads: bool = True) -> None:
        """Begin to save ``tree()`` where a save is due after ``step`` committed steps, and none runs.

        ``leads``: this is rank 0. Other ranks save to their node's memory only.
        """
        levels = self._levels if leads else [level for level in self._levels if level.is_memory]
        if not levels or levels[0].busy:
            return
        now, wanted, before = time.monotonic(), list[Level](), False
        for level in levels:
            before = level.due(step, now, before=before) and not level.busy
            wanted += [level] * before
        if not wanted:
            return
        fastest, slower = levels[0], [level for level in wanted if level is not levels[0]]
        for level in {id(x): x for x in (fastest, *wanted)}.values():
            level.attempt(step, now)
        state = self._copy = capture.copied(tree(), self._copy, device="cpu")
        checkpoint = Checkpoint(step, generation, self.lineage, "")
        fastest.run(lambda: self._spread(state, checkpoint, fastest, slower))

    def _spread(self, state: Any, checkpoint: Checkpoint, fastest: Level, slower: Sequence[Level]) -> None:
        """Save to the fastest tier, and copy from there; past a memory that is full, to the next tier directly."""
        saved = self._save(state, checkpoint, fastest)
        if saved is None and fastest.is_memory and slower:
            fastest, *slower = slower
            saved = self._save(state, checkpoint, fastest)
        if saved is not None:
            for level in slower:
                level.run(partial(self._promote, saved, fastest, level))

    def _save(self, state: Any, checkpoint: Checkpoint, level: Level, *, paced: bool = True) -> Checkpoint | None:
        pace = level.pace if paced else None

        def write() -> Checkpoint:
            at = {"step": checkpoint.step, "generation": checkpoint.generation}
            return level.tier.save(state, **at, lineage=checkpoint.lineage, pace=pace)

        return self._attempt("saving", checkpoint.step, level, write)

    def _promote(self, saved: Checkpoint, source: Level, level: Level) -> None:
        self._attempt("copying", saved.step, level, lambda: level.tier.copy(saved, source.tier, level.pace))

    def _attempt(self, what: str, step: int, level: Level, write: Callable[[], Checkpoint]) -> Checkpoint | None:
        """Returns the checkpoint, or None and reports why not."""
        began, tier = time.monotonic(), level.tier
        try:
            saved = write()
        except Exception as e:
            log.error("checkpoint failed", step=step, tier=tier.name, path=tier.where, error=str(e))
            self._note(level, error=f"{what} step {step} to {tier.where}: {e}")
            return None
        seconds = round(time.monotonic() - began, 2)
        log.info("checkpoint saved", step=step, tier=tier.name, path=saved.path, seconds=seconds)
        self._note(level, saved)
        return saved

    def _note(self, level: Level, saved: Checkpoint | None = None, error: str = "") -> None:
        """Change the report after an attempt. The node's memory is not in it: it protects no state."""
        if level is self._durable[0]:
            self._report(error=error, **({"step": saved.step, "path": saved.path, "resumed": None} if saved else {}))
        elif level in self._durable:
            self._report(archive_error=error, **({"archived_step": saved.step} if saved else {}))

    def _report(self, **changes: Any) -> None:
        with self._reporting:
            self.result = (self.result or CheckpointState()).model_copy(update=changes)

    def save_now(self, step: int, generation: int, tree: Callable[[], Any]) -> bool:
        """Save ``tree()`` durably and return when the save is done or has failed; waits for running saves first.

        Returns False, at once, for a job without checkpoints.
        """
        if not self._durable:
            return False
        self._wait(None)
        first, *others = self._durable
        saved = self._save(tree(), Checkpoint(step, generation, self.lineage, ""), first, paced=False)
        for level in others:
            if saved is not None:
                level.pace.hurry()
                self._promote(saved, first, level)
        return True

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
        """This rank is not rank 0: its report is void. Release the copy of the state, unless this rank saves to its
        node's memory; a running save releases it when it ends."""
        self.result = None
        if not any(level.is_memory for level in self._levels):
            self._copy = None


def _load_newest(
    surveys: Sequence[tuple[Tier, list[Checkpoint]]], unreadable: list[Unreadable], load: Callable[[Any], None]
) -> tuple[Tier, Checkpoint] | None:
    """Load the newest checkpoint that can be read, and return it with its tier. Adds the others to ``unreadable``."""
    for index, checkpoint in newest_first([complete for _, complete in surveys]):
        tier = surveys[index][0]
        try:
            tree = tier.load(checkpoint)
        except Exception as e:  # torch raises many kinds for damaged files
            log.error("checkpoint cannot be read", tier=tier.name, path=checkpoint.path, error=str(e)[:300])
            unreadable.append(Unreadable(tier, checkpoint.name, f"{type(e).__name__}: {e}"))
            continue
        load(tree)
        return tier, checkpoint
    return None
