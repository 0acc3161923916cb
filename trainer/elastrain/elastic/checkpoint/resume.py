"""How all ranks of a cold start choose the checkpoint to resume from, and load it.

Rank 0 reads what the tiers hold, and names one checkpoint after the other, the newest first, until the first rank of
each shard could load it. So all load the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from elastrain.api.records import CheckpointState, Resumed
from elastrain.elastic.checkpoint.division import WHOLE, Cut
from elastrain.elastic.checkpoint.levels import Level
from elastrain.elastic.checkpoint.rules import Checkpoint, Evidence, NewerVersion, candidates, why_stop
from elastrain.elastic.checkpoint.tier import Tier, Unreadable
from elastrain.elastic.encoding import decode, encode

log = structlog.get_logger(__name__)


Way = tuple[int, Checkpoint]
"""Number of a tier, and a checkpoint in it."""


def _alone(mine: bytes) -> list[bytes]:
    return [mine]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a cold start. Default: this one alone."""

    rank: int = 0
    shards: Sequence[int] = (0,)
    """By rank: the shard of the model that it holds."""
    gather: Callable[[bytes], list[bytes]] = _alone
    """What all ranks contribute, by rank."""


@dataclass(slots=True)
class ColdStart:
    """One cold start, on one rank.

    Raises ``RuntimeError`` if training must not begin at step 0 (:mod:`elastrain.elastic.checkpoint.rules`), and
    if only a newer version can read the newest checkpoint that is not damaged; and
    ``OSError`` if ``spec.checkpoint.path`` cannot be read or written, both on rank 0; and the errors of ``gather``.
    """

    levels: Sequence[Level]
    ranks: Ranks
    cut: Cut = WHOLE
    newest: int | None = None
    """Step of the newest checkpoint that counts: later ones may hold a wrong state. None: all count."""
    lineage: str = ""
    """The new one, after :meth:`choose`."""
    result: CheckpointState | None = None
    """For the job's status, on rank 0; None: it has no checkpoint."""
    _unreadable: list[Unreadable] = field(default_factory=list)
    _ways: list[Way] = field(default_factory=list)
    _before: str | None = None

    def choose(self, *, saved_step: int, reached: int, partial_state: str) -> tuple[Any, list[int]]:
        """Returns the tree that this rank has loaded, None if it has loaded nothing; and the ranks that hold the state
        then, by shard. The arguments are those of :class:`~elastrain.elastic.checkpoint.rules.Evidence`."""
        sources = [list(self.ranks.shards).index(shard) for shard in range(max(self.ranks.shards) + 1)]
        if self._leads:
            self._before = self.levels[0].tier.lineage if self.levels else None
            self._ways, self._unreadable = survey(self.levels)
        tree, way = self._load_first(iter(self._ways), loads=self.ranks.rank in sources)
        if self._leads and way is None:
            self._may_begin(saved_step=saved_step, reached=reached, partial_state=partial_state)
        if self._leads and self.levels:
            self._begin_lineage()
            self._report(way, saved_step, reached)
        self.lineage = decode(self.ranks.gather(encode(self.lineage))[0])
        return tree, sources

    @property
    def _leads(self) -> bool:
        return self.ranks.rank == 0

    # -- load --------------------------------------------------------------------------------------------------------
    def _load_first(self, ways: Iterator[Way], *, loads: bool) -> tuple[Any, Way | None]:
        """The first of ``ways``, which rank 0 has, that all ranks can load that have to; and this rank's tree."""
        while True:
            mine = encode(next(ways, None)) if self._leads else b""
            way: Way | None = decode(self.ranks.gather(mine)[0])
            if way is None:
                return None, None
            number, checkpoint = way
            tree, reason = self._try(number, checkpoint) if loads else (None, "")
            reasons = [raw.decode() for raw in self.ranks.gather(reason.encode())]
            if not any(reasons):
                return tree, way
            if newer := next((reason for reason in reasons if reason.startswith(NewerVersion.__name__)), ""):
                raise RuntimeError(newer.partition(": ")[2])
            self._unreadable.append(Unreadable(self.levels[number].tier, checkpoint.name, next(filter(None, reasons))))

    def _try(self, number: int, checkpoint: Checkpoint) -> tuple[Any, str]:
        """This rank's tree, and why it could not be loaded."""
        if self.newest is not None and checkpoint.step > self.newest:
            return None, f"it was saved after step {self.newest}, since when replicas may differ"
        try:
            return self.levels[number].tier.load(checkpoint, self.cut), ""
        except Exception as e:  # torch raises many kinds for damaged files
            log.error("checkpoint cannot be read", path=checkpoint.path, error=str(e)[:300])
            return None, f"{type(e).__name__}: {e}"

    # -- on rank 0 ---------------------------------------------------------------------------------------------------
    def _may_begin(self, *, saved_step: int, reached: int, partial_state: str) -> None:
        """No checkpoint was loaded. Raises ``RuntimeError`` if training must not begin at step 0."""
        path = " and ".join(level.tier.where for level in self.levels) or None
        tried = tuple((one.name or one.tier.where, one.reason) for one in self._unreadable)
        if why := why_stop(Evidence(path, self._before is not None, tried, saved_step, reached, partial_state)):
            raise RuntimeError(why)

    def _begin_lineage(self) -> None:
        """In all tiers that can be written; a save takes over the others."""
        seen = {checkpoint.lineage for _, checkpoint in self._ways}
        first, *others = [level.tier for level in self.levels]
        away = list[Tier]()
        for tier in others:
            try:
                seen.add(tier.lineage or "")
            except OSError as e:
                log.warning("checkpoints of a tier cannot be read", tier=tier.name, error=str(e))
                away.append(tier)
        self.lineage = first.begin_lineage(self._before, seen)
        for tier in others:
            try:
                if tier not in away:
                    tier.adopt(self.lineage)
            except OSError as e:
                log.warning("checkpoints of a tier cannot be written", tier=tier.name, error=str(e))

    def _report(self, way: Way | None, saved_step: int, reached: int) -> None:
        where = self.levels[0].tier.where
        if way is None:
            log.info("no checkpoint yet, training begins at step 0", path=where, repeated=reached)
            return
        for one in self._unreadable:
            if one.name:
                one.tier.set_aside(one.name)
        loaded, name = way[1], self.levels[way[0]].tier.name
        log.info("resumed from checkpoint", tier=name, path=loaded.path, step=loaded.step, lineage=loaded.lineage)
        if loaded.step < saved_step:
            log.warning("newer checkpoints are lost", step=loaded.step, newest=saved_step, path=where)
        self.result = CheckpointState(
            step=loaded.step, path=loaded.path, resumed=Resumed(step=loaded.step, tier=name, path=loaded.path)
        )


def survey(levels: Sequence[Level]) -> tuple[list[Way], list[Unreadable]]:
    """The complete checkpoints, in the order in which they are tried, and what cannot be read.

    Raises ``OSError`` for ``spec.checkpoint.path``: without it no lineage can begin.
    """
    found, unreadable = list[list[Checkpoint]](), list[Unreadable]()
    for level in levels:
        try:
            complete, damaged = level.tier.survey()
        except OSError as e:
            if level is levels[0]:
                raise
            log.warning("checkpoints of a tier cannot be read", tier=level.tier.name, error=str(e))
            complete, damaged = [], [Unreadable(level.tier, "", str(e))]
        found.append(complete)
        unreadable += damaged
    return candidates(found), unreadable
