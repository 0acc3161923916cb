"""How a generation begins: each rank contributes a row, and all ranks derive the same entry from the table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from elastrain.api.records import Generation
from elastrain.api.settings import Shards
from elastrain.data.share import Share
from elastrain.elastic.reshard.origin import Held, Holdings, Origin
from elastrain.elastic.reshard.partners import Home, partners
from elastrain.elastic.state.slices import Holders, Transfer


@dataclass(frozen=True, slots=True)
class EntryRow:
    """The contribution of one rank on entry of a generation."""

    step: int
    """Committed steps of the state in its memory; -1: it holds none."""
    size: int
    """World size of the generation that it comes from."""
    reached: int
    """Committed steps that it has been told of."""
    saved_step: int
    """Step of the newest durable checkpoint that it has been told of; 0: of none."""
    layout: int
    """As of :attr:`ElasticModule.layout`."""
    structure: int
    """As of :func:`elastrain.elastic.state.capture.structure`, if it may be needed; otherwise 0."""
    overlaps: int
    """1 if the rank can train while it sends its state, or be a learner while it receives it."""
    in_portions: int
    """1 if it can do so for several steps, and the state is large enough."""
    loop_end: int = 0
    """Committed steps at which the loop of its script ends."""
    trained: int = 0
    """As of :attr:`elastrain.elastic.state.trained.TrainedSet.digest`."""
    calls: int = 0
    """Exchanges outside of steps since its last committed step (:mod:`elastrain.elastic.membership.calls`)."""
    between: int = 0
    """1: its script is in a call between two steps, where it can receive no state."""
    shard: int = 0
    """The part of the model that it holds."""
    shards: int = 0
    """With ``shards: all``: of how many; 0: of none."""
    first_step: int = -1
    """The same: committed steps of a snapshot that it has; -1: of none."""
    first_shards: int = 0
    first_shard: int = 0
    first_by: int = 0
    first_ward: int = -1
    second_step: int = -1
    second_shards: int = 0
    second_shard: int = 0
    second_by: int = 0
    second_ward: int = -1
    """Another one."""
    node: int = 0
    worker: int = 0
    """As of :class:`elastrain.elastic.reshard.partners.Home`."""
    voted: int = 0
    """As of :class:`elastrain.elastic.membership.verdict.Row`."""
    counted: int = 0
    """The same."""
    by: int = 0
    """The generation whose votes its last step was committed by; 0: it has none, or an older checkpoint's."""

    @property
    def state(self) -> tuple[int, int]:
        """What tells its state from all others; the newer one is greater.

        A rank may have committed a step as the last one of a generation that it was then excluded from. The others
        repeat the step without it, perhaps cut in another way: the same step is then two states.
        """
        return self.step, self.by

    @property
    def holdings(self) -> Holdings:
        """What it can give, with ``shards: all``."""
        first = Held(self.first_step, self.first_shards, self.first_shard, self.first_by, self.first_ward)
        second = Held(self.second_step, self.second_shards, self.second_shard, self.second_by, self.second_ward)
        return Holdings(Held(self.step, self.shards, self.shard, self.by), [s for s in (first, second) if s.shards])


_NONE = (-1, 0)
"""The state of ranks that hold none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a generation begins; the same on all ranks."""

    sources: list[int]
    """Ranks that send their state; [0] if no rank holds any."""
    receivers: list[int]
    """Ranks that receive it."""
    shares: dict[int, Share]
    """The shares of the ranks in the first step, if the receivers are learners in it; otherwise empty."""
    in_portions: bool
    """Whether the receivers are learners until they have received their state in portions."""
    from_size: int
    """World size that the furthest rank comes from; 0 if no state was left."""
    reached: int
    """Committed steps that any rank has been told of."""
    saved_step: int
    """Step of the newest durable checkpoint that any rank has been told of; 0: of none."""
    same_layout: bool
    loop_end: int
    """Of the loop in which the ranks are that send their state."""
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
    """By rank: as of :attr:`EntryRow.shard`."""
    torn: list[int]
    """Ranks that hold a part of a state of which no rank holds another part: nothing can continue from it."""
    origin: Origin | None = None
    """Where the shards come from, with ``shards: all``."""
    partners: Sequence[int] = ()
    """As of :func:`elastrain.elastic.reshard.partners.partners`, with ``shards: all``."""

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
        newest = [r for r in range(len(table)) if r not in receivers]
        ahead = max(newest, key=lambda r: (table[r].calls, -r))
        loop_end = table[sources[0]].loop_end
        lacking = {r: table[ahead].calls - table[r].calls for r in newest}
        return cls(
            sources=sources,
            receivers=receivers,
            shares=shares,
            # A rank that holds an older state keeps it until it has all of the newer one.
            in_portions=bool(shares)
            and all(row.in_portions and (r not in receivers or row.step < 0) for r, row in enumerate(table)),
            from_size=table[sources[0]].size if held else 0,
            reached=max(row.reached for row in table),
            saved_step=max(row.saved_step for row in table),
            same_layout=_same_layout(table),
            loop_end=loop_end,
            late=[r for r in receivers if table[r].loop_end < loop_end or table[r].between],
            misplaced=sorted(
                [r for r in receivers if table[ahead].calls or (table[r].step < 0 and table[r].loop_end > loop_end)]
                + [r for r, calls in lacking.items() if calls > 1]
            ),
            ahead=ahead,
            behind=[r for r, calls in lacking.items() if calls == 1],
            shards=[row.shard for row in table],
            torn=[] if held else [r for r, row in enumerate(table) if row.step >= 0],
        )

    @classmethod
    def _of_one_copy(cls, table: Sequence[EntryRow]) -> Entry:
        """What is not sharded comes from the ranks that can give a shard of the newest whole state."""
        origin = Origin.of([row.holdings for row in table])
        rows = [
            replace(row, step=origin.step if parts else -1, shard=0, by=0, calls=0 if origin.snapshot else row.calls)
            for row, parts in zip(table, origin.held, strict=True)
        ]
        torn = list(range(len(table))) if origin.lost else []
        homes = [Home(row.node, row.worker) for row in table]
        return replace(cls.of(rows), origin=origin, torn=torn, partners=partners(homes))

    def transfer(self, rank: int, holders: Callable[[Sequence[int]], Holders]) -> Transfer:
        """How the part of the state travels that ``rank`` holds or needs. ``holders``: as of ``Strategy.holders``."""
        alike = [r for r, shard in enumerate(self.shards) if shard == self.shards[rank]]
        sources = [r for r in self.sources if r in alike]
        return Transfer(sources, [r for r in self.receivers if r in alike], holders(sources))

    @property
    def cold(self) -> bool:
        """Whether no rank holds state."""
        return self.from_size == 0


def newest_whole(table: Sequence[EntryRow], shards: int) -> tuple[int, int]:
    """The newest :attr:`EntryRow.state` of which the ranks hold all parts; (-1, 0): of none. Pure."""
    parts: dict[tuple[int, int], set[int]] = {}
    for row in table:
        if row.step >= 0:
            parts.setdefault(row.state, set()).add(row.shard)
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

    That takes their time and memory, so only if at least as many ranks did so before.
    """
    holders = [r for r in range(len(table)) if r not in receivers]
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
    held = [r for r, row in enumerate(table) if row.shard == shard and state in (row.state, _NONE)]
    if state == _NONE:
        return held[:1]
    first = max(held, key=lambda r: (table[r].loop_end, -r))

    def same(row: EntryRow) -> tuple[int, ...]:
        return row.loop_end, row.structure

    return [r for r in held if r == first or (table[r].structure and same(table[r]) == same(table[first]))]
