"""What follows from the digests of all ranks: which entries differ, which ranks hold the right ones. Pure.

The ranks that hold the same part of the model compare it. A difference is decided by a majority: more than half of
these ranks hold the same values, to the bit. The others take the state of the majority from a peer. A rank has no vote
if it has discarded a loop body since all were equal, or received its state from such a rank: what the body has left
behind is the likely cause. Without a majority no rank can tell which values are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from elastrain.elastic.replicas.entries import LEFT_OUT

Digests = Mapping[str, int]
_SHOWN = 3
"""Entries in a message."""
WAY_OUT = (
    "a bit has changed in memory, or the script does not do the same on all ranks, or their machines round differently "
    "(docs/numerics.md)"
)


class Outcome(Enum):
    """Of a comparison."""

    EQUAL = auto()
    TAKE = auto()
    """A minority takes the state of the majority."""
    GO_BACK = auto()
    """All ranks go back to a checkpoint that was written before the difference can have come to be."""
    FAIL = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """What a rank says once digests differ."""

    digests: Digests
    """By entry; empty: it does not hold all of its state."""
    shard: int = 0
    """The part of the model that it holds."""
    equal_at: int = -1
    """Committed steps at which it has found all replicas equal, the last time; -1: never."""
    may_go_back: bool = False
    """Whether the job may return to a checkpoint."""
    suspect: bool = False
    """Whether its state comes from a rank that has discarded a loop body since then."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The same on all ranks."""

    outcome: Outcome
    minority: Sequence[int] = ()
    """With ``TAKE``: the ranks whose state is wrong."""
    own: frozenset[str] = frozenset()
    """Entries that were left out, since a rank says that they may differ."""
    equal_at: int = -1
    """As of :attr:`Row.equal_at`, of the rank that knows the latest."""
    why: str = ""
    """For the log and for errors: entries, ranks and steps."""


def differ(numbers: Sequence[int], shards: Sequence[int]) -> bool:
    """Whether ranks that hold the same shard have other numbers. ``numbers``: by rank; 0: it does not compare."""
    seen: dict[int, int] = {}
    return any(n and seen.setdefault(shard, n) != n for n, shard in zip(numbers, shards, strict=True))


def judge(rows: Sequence[Row], step: int) -> Judgement:
    """What follows from the ``rows`` of all ranks, whose states are of ``step`` committed steps."""
    own = frozenset(name for row in rows for name, number in row.digests.items() if number == LEFT_OUT)
    minority, texts, decided = list[int](), list[str](), True
    for shard in sorted({row.shard for row in rows}):
        groups = _groups({r: row.digests for r, row in enumerate(rows) if row.shard == shard and row.digests}, own)
        if len(groups) < 2:
            continue
        suspects = {r for group in groups for r in group if rows[r].suspect}
        votes = [len({*group} - suspects) for group in groups]
        largest = max(groups, key=lambda group: (len({*group} - suspects), len(group)))
        decided &= 2 * max(votes) > sum(votes)
        others = [group for group in groups if group is not largest]
        minority += [rank for group in others for rank in group]
        texts += [_difference(rows, largest, group, own) for group in others]
        texts += [f"{_ranks(sorted(suspects))} may hold what a discarded loop body has left"] * bool(suspects)
    equal_at = max(row.equal_at for row in rows)
    if not texts:
        return Judgement(Outcome.EQUAL, own=own, equal_at=equal_at)
    since = f"they were equal after step {equal_at}" if equal_at >= 0 else "they were not compared before"
    why = f"the ranks' states of step {step} differ: {'; '.join(texts)}; {since}"
    if decided:
        return Judgement(Outcome.TAKE, sorted(minority), own, equal_at, f"{why}; the majority is taken for right")
    back = equal_at >= 0 and all(row.may_go_back for row in rows)
    way = f"the job goes back to a checkpoint of step {equal_at} or before" if back else WAY_OUT
    outcome = Outcome.GO_BACK if back else Outcome.FAIL
    return Judgement(outcome, (), own, equal_at, f"{why}; no majority of ranks has the same state: {way}")


def _groups(states: Mapping[int, Digests], own: frozenset[str]) -> list[list[int]]:
    """The ranks by what they hold, the lowest rank first."""
    groups: dict[frozenset[tuple[str, int]], list[int]] = {}
    for rank, digests in states.items():
        held = frozenset((name, number) for name, number in digests.items() if name not in own)
        groups.setdefault(held, []).append(rank)
    return list(groups.values())


def _difference(rows: Sequence[Row], ours: Sequence[int], others: Sequence[int], own: frozenset[str]) -> str:
    first, second = rows[ours[0]].digests, rows[others[0]].digests
    names = [n for n in {**first, **second} if n not in own and first.get(n) != second.get(n)]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{_ranks(others)} from {_ranks(ours)} in {shown}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
