"""Which rank writes what of a checkpoint whose parts several ranks hold. Pure.

The ranks that hold the same shard of the model divide its bytes among themselves, so that each byte is written once and
all ranks write. One rank commits the checkpoint when all parts are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from elastrain.elastic.reshard.plan import bounds


@dataclass(frozen=True, slots=True)
class Writers:
    """The ranks that write one checkpoint, and this rank's place among them. Default: this rank writes all of it."""

    holders: tuple[int, ...] = (1,)
    """By shard: ranks that hold it."""
    shard: int = 0
    """The shard that this rank holds."""
    holder: int = 0
    """This rank's number among those that hold it."""
    commits: bool = True
    """Whether this rank completes the checkpoint. One rank does."""
    attempt: str = ""
    """Equal for all writers of one attempt, and for no other: 8 hexadecimal digits. Empty: this rank writes alone."""

    @classmethod
    def of(cls, shards: Sequence[int], rank: int, attempt: str) -> Writers:
        """All ranks of a generation write. ``shards``: by rank, the shard that it holds. ``attempt``: any text."""
        mine = shards[rank]
        return cls(
            tuple(shards.count(shard) for shard in range(max(shards) + 1)),
            mine,
            shards[:rank].count(mine),
            commits=rank == 0,
            attempt=xxhash.xxh32_hexdigest(attempt.encode()),
        )

    def of_one_group(self, attempt: str) -> Writers:
        """This rank's group alone writes: it is not known which of the others are left."""
        holders = (1,) * len(self.holders)
        token = xxhash.xxh32_hexdigest(f"{attempt}/{self.holder}".encode())
        return Writers(holders, self.shard, 0, commits=self.shard == 0, attempt=token)

    def for_itself(self) -> Writers:
        """This rank writes a checkpoint of its shard alone."""
        return Writers((1,) * self.shards, self.shard)

    @property
    def shards(self) -> int:
        """Parts of the model."""
        return len(self.holders)

    @property
    def number(self) -> int:
        """This rank's number among all writers."""
        return sum(self.holders[: self.shard]) + self.holder

    @property
    def count(self) -> int:
        """All writers."""
        return sum(self.holders)

    def takes(self, sizes: Mapping[str, int]) -> set[str]:
        """The names of the tensors that this rank writes, of those of its shard. ``sizes``: bytes by name."""
        return divided(sizes, self.holders[self.shard])[self.holder]


ALONE = Writers()


def _stays_whole(path: tuple[Any, ...], shape: Sequence[int]) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a state a rank loads. Default: all of it, of tensors that were sharded too."""

    shard: int = 0
    shards: int = 1
    dim_of: Callable[[tuple[Any, ...], Sequence[int]], int | None] = _stays_whole
    """The dimension along which a tensor is cut that was whole when it was saved, by its path in the tree and its
    shape; None: it stays whole."""


WHOLE = Cut()


def divided(sizes: Mapping[str, int], among: int) -> list[set[str]]:
    """The names cut into ``among`` sets of nearly equal bytes: the largest first, each to the set with fewest bytes."""
    sets: list[set[str]] = [set() for _ in range(among)]
    totals = [0] * among
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        smallest = totals.index(min(totals))
        sets[smallest].add(name)
        totals[smallest] += sizes[name]
    return sets


def chunk(shape: Sequence[int], dim: int, shard: int, shards: int) -> tuple[list[int], list[int]]:
    """Offsets and sizes of a shard of a tensor that ``torch.chunk`` has cut along ``dim``, as FSDP2 does."""
    start, stop = bounds(shape[dim], shards, shard)
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[dim], sizes[dim] = start, stop - start
    return offsets, sizes
