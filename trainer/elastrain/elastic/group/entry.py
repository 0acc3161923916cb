"""How a generation begins: each rank contributes a row, and all ranks derive the same entry from the table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.records import Generation
from elastrain.api.settings import Shards
from elastrain.data.facts import differing
from elastrain.data.share import Share
from elastrain.elastic.reshard.restore import FRESH, NOTHING, HeldShards, Home, RestorePlan, ShardRef, partners
from elastrain.elastic.state.portions import Transfer

_ANYWHERE = Home(0, 0)
_NONE = (FRESH, 0)
"""The state of ranks that hold none."""


@dataclass(frozen=True, slots=True)
class Script:
    """Where a rank's script is."""

    loop: LoopId = NO_LOOP
    calls: int = 0
    """Exchanges outside of steps since its last committed step (:mod:`elastrain.elastic.group.calls`)."""
    between: bool = False
    """It is in a call between two steps, where it can receive no state."""
    computes: bool = False
    """A step follows (:class:`elastrain.elastic.boundary.Act`), as far as it knows. A rank without state does not."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """The contribution of one rank on entry of a generation. It travels as integers, in the order of the fields."""

    live: ShardRef
    """The part of the model that it holds, in memory."""
    size: int
    """World size of the generation that it comes from."""
    reached: int
    """Committed steps of the state that it holds, or held last."""
    told: int = 0
    """Committed steps of the job in reports that it has been told of."""
    saved_step: int = 0
    """Step of the newest durable checkpoint that it has been told of; 0: of none."""
    structure: int = 0
    """As of :func:`elastrain.elastic.state.capture.structure`, if it may be needed; otherwise 0."""
    layout: int = 0
    """As of :attr:`ElasticModule.layout`."""
    trained: int = 0
    """As of :attr:`elastrain.elastic.state.trained.TrainedSet.digest`."""
    overlaps: bool = False
    """Whether the rank can train while it sends its state, or be a learner while it receives it."""
    in_rounds: bool = False
    """Whether it can do so for several steps (turns), and the state is large enough."""
    script: Script = Script()
    order: int = 0
    """As of :attr:`elastrain.data.facts.OrderFacts.digest`, of its loop's data; 0: not known."""
    changes: int = -1
    """As of :attr:`elastrain.data.changes.Changes.seen`."""
    voted: int = 0
    """As of :class:`elastrain.elastic.commit.ledger.Row`."""
    counted: int = 0
    """The same."""
    back: int = -1
    """As of :attr:`elastrain.elastic.replicas.replicas.Replicas.back`."""
    pace: int = 0
    """As of :attr:`elastrain.elastic.shares.EqualShares.pace`."""
    ceiling: int = 0
    """As of :meth:`elastrain.elastic.shares.EqualShares.ceiling`."""
    snapshots: tuple[ShardRef, ShardRef] = (NOTHING, NOTHING)
    """With ``shards: all``: what it can give besides."""
    home: Home = _ANYWHERE
    """With ``shards: all``: where it runs."""

    @property
    def step(self) -> int:
        """Committed steps of the state in its memory; -1: it holds none."""
        return self.live.step

    @property
    def state(self) -> tuple[int, int]:
        """What tells its state from all others; the newer one is greater.

        A rank may have committed a step as the last one of a generation that it was then excluded from. The others
        repeat the step without it, perhaps cut in another way: the same step is then two states.
        """
        return self.live.step, self.live.by

    @property
    def held_shards(self) -> HeldShards:
        """What it can give, with ``shards: all``."""
        return HeldShards(self.live, [held for held in self.snapshots if held.shards])


class Outcome(Enum):
    """What one rank does when the ranks of a generation have met."""

    ENTER = "takes or gives state, and trains"
    AWAIT = "meets the others again: scripts of other ranks catch up with the loop of the job"
    CATCH_UP = "its own script does"
    REFUSE = "ends the job: the ranks' data differs"
    WITHDRAW = "becomes another member: it can continue with the others later"
    START_ANEW = "its process starts again: it cannot continue with the others"
    GIVE_UP = "waits for another generation, without the ranks that start anew or withdraw"


@dataclass(frozen=True, slots=True)
class Entry:
    """How a generation begins; the same on all ranks."""

    sources: list[int]
    """Ranks that send their state; [0] if no rank holds any."""
    receivers: list[int]
    """Ranks that receive it."""
    shares: dict[int, Share]
    """The shares of the ranks in the first step, if the receivers are learners in it; otherwise empty."""
    in_rounds: bool
    """Whether the receivers are learners until they have received their state, in several rounds."""
    from_size: int
    """World size that the furthest rank comes from; 0 if no state was left."""
    reached: int
    """Committed steps that any rank has reached, or has been told of if none holds a state. Reports may be older than
    the last return to a snapshot, and what that cost is counted already."""
    saved_step: int
    """Step of the newest durable checkpoint that any rank has been told of; 0: of none."""
    same_layout: bool
    loop: LoopId
    """That in which the ranks are that send their state."""
    late: list[int]
    """Ranks that need state, and whose scripts are in an earlier loop or between two steps: they catch up, and the
    others wait for them."""
    misplaced: list[int]
    """Ranks whose scripts cannot continue with the others': they need state, and the ranks that have it are between two
    loops or in an earlier loop; or they lack more than one exchange outside of steps."""
    ahead: int
    """The first of the ranks with the newest state that have completed most exchanges outside of steps."""
    behind: list[int]
    """Ranks with the newest state that lack the last one of these."""
    shards: list[int]
    """By rank: the part of the model that it holds."""
    partial: list[int]
    """Ranks that hold a part of a state of which no rank holds another part: nothing can continue from it."""
    changes: int = -1
    """Those that the state has seen, or will have in the first step if the receivers are learners in it."""
    back: int = -1
    """If no rank holds state since replicas differ: no checkpoint of a later step counts. -1: all do."""
    other_data: Sequence[int] = ()
    """Ranks in that loop whose data has another order than that of the others."""
    paces: Sequence[int] = ()
    """By rank."""
    ceiling: int = 0
    """The least one that a rank knows; 0: none does."""
    restore: RestorePlan | None = None
    """Where the shards come from, with ``shards: all``."""
    partners: Sequence[int] = ()
    """As of :func:`elastrain.elastic.reshard.restore.partners`, with ``shards: all``."""

    @classmethod
    def of(cls, table: Sequence[EntryRow], shards: Shards = 1) -> Entry:
        """``table``: by rank. ``shards``: parts of the model, each of which at least one rank has."""
        if shards == "all":
            return cls._of_one_copy(table)
        furthest = newest_whole(table, shards)
        sources = [r for shard in range(shards) for r in _sources(table, shard, furthest)]
        held = furthest != _NONE
        receivers = [r for r, row in enumerate(table) if (row.state != furthest if held else r not in sources)]
        shares = _shares(table, sources, receivers)
        scripts = [row.script for row in table]
        loop = scripts[sources[0]].loop
        newest = [r for r in range(len(table)) if r not in receivers]
        ahead = max(newest, key=lambda r: (scripts[r].calls, -r))
        lacking = {r: scripts[ahead].calls - scripts[r].calls for r in newest}
        return cls(
            sources=sources,
            receivers=receivers,
            shares=shares,
            # A rank that holds an older state keeps it until it has all of the newer one.
            in_rounds=bool(shares)
            and all(row.in_rounds and (r not in receivers or row.step < 0) for r, row in enumerate(table)),
            from_size=table[sources[0]].size if held else 0,
            reached=max(row.reached if held else max(row.reached, row.told) for row in table),
            saved_step=max(row.saved_step for row in table),
            same_layout=_same_layout(table),
            loop=loop,
            late=[r for r in receivers if scripts[r].loop < loop or scripts[r].between],
            misplaced=sorted(
                [r for r in receivers if scripts[ahead].calls or (table[r].step < 0 and scripts[r].loop > loop)]
                + [r for r, calls in lacking.items() if calls > 1]
            ),
            ahead=ahead,
            behind=[r for r, calls in lacking.items() if calls == 1],
            shards=[row.live.shard for row in table],
            partial=[] if held else [r for r, row in enumerate(table) if row.step >= 0],
            back=max(row.back for row in table),
            paces=[row.pace for row in table],
            ceiling=min((row.ceiling for row in table if row.ceiling), default=0),
            changes=max(table[sources[0]].changes, furthest[0] if shares else -1),
            other_data=differing(
                [row.order for row in table],
                [r for r, script in enumerate(scripts) if script.loop == loop],
                newest if held else (),
            ),
        )

    @classmethod
    def _of_one_copy(cls, table: Sequence[EntryRow]) -> Entry:
        """What is not sharded comes from the ranks that can give a shard of the newest whole state."""
        restore = RestorePlan.of([row.held_shards for row in table])
        rows = [
            replace(
                row,
                live=ShardRef(restore.step if parts else FRESH, 1, 0),
                script=replace(row.script, calls=0) if restore.snapshot else row.script,
            )
            for row, parts in zip(table, restore.held, strict=True)
        ]
        partial = list(range(len(table))) if restore.lost else []
        return replace(cls.of(rows), restore=restore, partial=partial, partners=partners([row.home for row in table]))

    def transfer(self, rank: int) -> Transfer:
        """How the part of the state travels that ``rank`` holds or needs."""
        alike = [r for r, shard in enumerate(self.shards) if shard == self.shards[rank]]
        return Transfer([r for r in self.sources if r in alike], [r for r in self.receivers if r in alike])

    def outcome(self, rank: int, loop: LoopId) -> Outcome:
        """What ``rank`` does, whose script is in ``loop``. Pure."""
        if self.partial:
            return Outcome.START_ANEW if rank in self.partial else Outcome.GIVE_UP
        if rank in self.misplaced:
            can_come = rank in self.receivers and loop <= self.loop
            return Outcome.WITHDRAW if can_come else Outcome.START_ANEW
        if self.misplaced:
            return Outcome.GIVE_UP
        if self.late:
            return Outcome.CATCH_UP if rank in self.late else Outcome.AWAIT
        return Outcome.REFUSE if self.other_data else Outcome.ENTER

    @property
    def why_not(self) -> str:
        """Why a rank does not enter: :attr:`Outcome.START_ANEW`, ``WITHDRAW`` or ``GIVE_UP``."""
        if self.partial:
            return f"no rank holds the other parts of the state of ranks {_listed(self.partial)}: it is lost"
        return (
            f"the script of rank {_listed(self.misplaced)} is in another loop than the job, or the others are between "
            "two loops"
        )

    @property
    def cold(self) -> bool:
        """Whether no rank holds state."""
        return self.from_size == 0


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def newest_whole(table: Sequence[EntryRow], shards: int) -> tuple[int, int]:
    """The newest :attr:`EntryRow.state` of which the ranks hold all parts; (-1, 0): of none. Pure."""
    parts: dict[tuple[int, int], set[int]] = {}
    for row in table:
        if row.step >= 0:
            parts.setdefault(row.state, set()).add(row.live.shard)
    return max((state for state, held in parts.items() if len(held) == shards), default=_NONE)


def has_joiners(before: Generation | None, after: Generation) -> bool:
    """Whether ``after`` has members that were not in ``before``, as far as a rank can tell."""
    if after.roster is not None:
        return True  # of a large generation a rank receives only its own place
    old = {m.id for m in before.members} if before else set()
    return any(m.id not in old for m in after.members)


def smaller(current: Generation | None, proposals: Iterable[Generation | None]) -> frozenset[int]:
    """Numbers of the proposals to which ranks can switch between loops, where none can receive or save the state."""
    return frozenset(g.number for g in proposals if g is not None and g.size and not has_joiners(current, g))


def _same_layout(table: Sequence[EntryRow]) -> bool:
    return table[0].layout != 0 and all(row.layout == table[0].layout for row in table)


def _shares(table: Sequence[EntryRow], sources: Sequence[int], receivers: Sequence[int]) -> dict[int, Share]:
    """The holders of the state compute the batch among themselves.

    That takes their time and memory, so only if at least as many ranks did so before; and only if a step follows on all
    of them: before it the receivers, which have begun its sums, could make no other exchange.
    """
    holders = [r for r in range(len(table)) if r not in receivers]
    if not all(table[r].script.computes for r in holders):
        return {}
    able = all(row.overlaps and row.trained == table[0].trained for row in table) and _same_layout(table)
    if not receivers or not able or len(holders) < table[sources[0]].size or table[sources[0]].step < 0:
        return {}
    parts = len(holders)
    return {
        **{r: Share(i, parts) for i, r in enumerate(holders)},
        **dict.fromkeys(receivers, Share(parts, parts)),
    }


def _sources(table: Sequence[EntryRow], shard: int, state: tuple[int, int]) -> list[int]:
    """Ranks that hold ``shard`` of ``state``, and can each send a part: those in the same, latest loop.

    The first rank of the shard if there is no state.
    """
    held = [r for r, row in enumerate(table) if row.live.shard == shard and state in (row.state, _NONE)]
    if state == _NONE:
        return held[:1]
    first = max(held, key=lambda r: (table[r].script.loop, -r))

    def same(row: EntryRow) -> tuple[LoopId, int]:
        return row.script.loop, row.structure

    return [r for r in held if r == first or (table[r].structure and same(table[r]) == same(table[first]))]
