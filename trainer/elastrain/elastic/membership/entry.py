"""How a generation begins: what every rank says of itself as it enters, and what all conclude from that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.data.share import Share


@dataclass(frozen=True, slots=True)
class Row:
    """What a rank says of itself on entry of a generation."""

    step: int
    """Committed steps of the state that it holds; -1: it holds none."""
    size: int
    """World size of the generation that it comes from."""
    reached: int
    """Committed steps that it has heard of."""
    layout: int
    structure: int
    """Of its state, where that may be needed; 0 elsewhere."""
    in_passing: int
    """1 if it can train while it gives or, having got its state, look on."""
    in_portions: int
    """1 if it can do so for several steps, and the state is large enough."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a generation begins; the same on all ranks."""

    sources: list[int]
    """Ranks that give their state; [0] where no rank holds any."""
    behind: list[int]
    """Ranks that get it."""
    shares: dict[int, Share]
    """Of the ranks in the first step, if those ``behind`` look on in it; else empty."""
    in_portions: bool
    """Whether they look on until they have got their state in portions."""
    from_size: int
    """World size that the furthest rank comes from; 0 if no state was left."""
    reached: int
    """Committed steps that any of them has heard of."""
    same_layout: bool

    @classmethod
    def of(cls, table: Sequence[Row]) -> Entry:
        """``table``: by rank."""
        furthest = max(row.step for row in table)
        sources = _sources(table) if furthest >= 0 else [0]
        behind = [r for r, row in enumerate(table) if row.step < furthest or (furthest < 0 and r != 0)]
        shares = _shares(table, sources, behind)
        return cls(
            sources=sources,
            behind=behind,
            shares=shares,
            # A rank whose own state is worth something keeps that until it has all of the other.
            in_portions=bool(shares)
            and all(row.in_portions and (r not in behind or row.step < 0) for r, row in enumerate(table)),
            from_size=table[sources[0]].size if furthest >= 0 else 0,
            reached=max(row.reached for row in table),
            same_layout=_same_layout(table),
        )

    @property
    def cold(self) -> bool:
        """Whether no rank holds state."""
        return self.from_size == 0


def _same_layout(table: Sequence[Row]) -> bool:
    return table[0].layout != 0 and all(row.layout == table[0].layout for row in table)


def _shares(table: Sequence[Row], sources: Sequence[int], behind: Sequence[int]) -> dict[int, Share]:
    """Those who hold the state compute the batch among themselves, which takes their time and memory: only where they
    did so before, too.
    """
    holders = [r for r in range(len(table)) if r not in behind]
    able = all(row.in_passing for row in table) and _same_layout(table)
    if not behind or not able or len(holders) < table[sources[0]].size or table[sources[0]].step < 0:
        return {}
    parts = len(holders)
    return {
        **{r: Share(i, parts) for i, r in enumerate(holders)},
        **dict.fromkeys(behind, Share(parts, parts)),
    }


def _sources(table: Sequence[Row]) -> list[int]:
    """Ranks that hold the newest state and can each give a share of it."""
    first = max(range(len(table)), key=lambda r: (table[r].step, -r))
    same = (table[first].step, table[first].structure)
    return [r for r, row in enumerate(table) if r == first or (row.structure and (row.step, row.structure) == same)]
