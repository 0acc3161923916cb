"""Which rank writes what of a checkpoint whose parts several ranks hold. Pure.

The ranks that hold the same shard of the model divide its bytes among themselves, so that each byte is written once and
all ranks write. One rank commits the checkpoint when all parts are there.

A saved tree has placeholders where its tensors were: those are written by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import xxhash

from elastrain.api.shape import ONE_RANK, SHARDS, Divides, Shape
from elastrain.elastic.encoding.leaves import is_dense
from elastrain.elastic.state.parts import Dims, Part, bounds
from elastrain.elastic.torch_private import pytree


@dataclass(frozen=True, slots=True)
class Grid:
    """The place of a shard among those of a group."""

    shard: int = 0
    shape: Shape = ONE_RANK
    """Of a group."""

    def chunk(self, shape: Sequence[int], dims: Dims) -> tuple[list[int], list[int]]:
        """Offsets and sizes of the shard's part of a tensor; ``dims``: as of
        :attr:`~elastrain.elastic.state.parts.Part.dims`.

        Each cut is that of ``torch.chunk``, as ``fully_shard`` and ``parallelize_module`` make it.
        """
        offsets, sizes, own = [0] * len(shape), list(shape), self.shape.coordinates(self.shard)
        for name, dim in reversed(dims):
            if dim is not None:
                start, stop = bounds(sizes[dim], self.shape.named(name).size, own[name])
                offsets[dim], sizes[dim] = offsets[dim] + start, stop - start
        return offsets, sizes

    @property
    def prefix(self) -> str:
        """What the names of all that this shard saves begin with: ranks with other layers may use the same names."""
        stages = self.shape.dividing(Divides.LAYERS)
        return "".join(f"{name}{self.shape.coordinates(self.shard)[name]}/" for name in stages)

    def own(self, dims: Dims) -> bool:
        """Whether this shard's part of a tensor is the first of those that are equal: of the ranks along a dimension
        that has not cut it. Other layers are other tensors."""
        cut, layers = {name for name, dim in dims if dim is not None}, self.shape.dividing(Divides.LAYERS)
        return not any(at for name, at in self.shape.coordinates(self.shard).items() if name not in cut | {*layers})


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
    shape: Shape = ONE_RANK
    """As of :class:`Grid`."""

    @classmethod
    def of(cls, shards: Sequence[int], rank: int, attempt: str, shape: Shape) -> Writers:
        """All ranks of a generation write. ``shards``: by rank, the shard that it holds. ``attempt``: any text."""
        mine = shards[rank]
        return cls(
            tuple(shards.count(shard) for shard in range(max(shards) + 1)),
            mine,
            shards[:rank].count(mine),
            commits=rank == 0,
            attempt=xxhash.xxh32_hexdigest(attempt.encode()),
            shape=shape,
        )

    def of_one_group(self, attempt: str) -> Writers:
        """This rank's group alone writes: it is not known which of the others are left."""
        holders = (1,) * len(self.holders)
        token = xxhash.xxh32_hexdigest(f"{attempt}/{self.holder}".encode())
        return replace(self, holders=holders, holder=0, commits=self.shard == 0, attempt=token)

    def for_itself(self) -> Writers:
        """This rank writes a checkpoint of its shard alone."""
        return Writers((1,) * self.shards, self.shard, shape=self.shape)

    @property
    def shards(self) -> int:
        """Parts of the model."""
        return len(self.holders)

    @property
    def grid(self) -> Grid:
        """The place of this rank's shard."""
        return Grid(self.shard, self.shape)

    @property
    def describes(self) -> bool:
        """Whether this rank writes the structure of its tree, which is that of all ranks with the same layers."""
        return self.commits or (self.holder == 0 and self.grid.own(()))

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
        return _shared_out(sizes, self.holders[self.shard])[self.holder]


ALONE = Writers()


def _stays_whole(path: tuple[Any, ...], shape: Sequence[int]) -> Dims | None:
    return None


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a state a rank loads. Default: all of it, of tensors that were sharded too."""

    grid: Grid = Grid()
    dims_of: Callable[[tuple[Any, ...], Sequence[int]], Dims | None] = _stays_whole
    """The dimensions along which a tensor is cut, by its path in the tree and its shape; None: not known, so that it
    stays as it was saved."""


WHOLE = Cut()


def _shared_out(sizes: Mapping[str, int], among: int) -> list[set[str]]:
    """The names cut into ``among`` sets of nearly equal bytes: the largest first, each to the set with fewest bytes."""
    sets: list[set[str]] = [set() for _ in range(among)]
    totals = [0] * among
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        smallest = totals.index(min(totals))
        sets[smallest].add(name)
        totals[smallest] += sizes[name]
    return sets


# -- the structure of a saved tree -------------------------------------------------------------------------------------
Path = tuple[Any, ...]
"""Of a leaf in a tree."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The placeholder of a tensor."""

    name: str
    stride: tuple[int, ...] | None = None
    """If its elements fill one run of memory."""
    dtype: torch.dtype | None = None
    """If its bytes are written instead, since DCP writes no tensors of this type."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """That of a tensor that is sharded."""

    name: str
    dim: int
    """Over the ranks to which ``fully_shard`` has spread it. Another dimension may be cut too."""
    stride: tuple[int, ...]


def is_part(leaf: Any) -> bool:
    """For walks over a tree of which parts are leaves."""
    return isinstance(leaf, Part)


def name_of(path: Path) -> str:
    """``model/0.weight``."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


def placeholder(path: Path, leaf: Any, prefix: str = "") -> Any:
    """Of a tensor or a part; anything else as it is. ``prefix``: of its name.

    DCP itself would turn the integer keys of optimizer states into strings, which the optimizer ignores.
    """
    if isinstance(leaf, Part):
        dim = dict(leaf.dims)[SHARDS]
        assert dim is not None
        return Sharded(prefix + name_of(path), dim, leaf.stride)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dense = leaf.stride() if is_dense(leaf) else None
    return Entry(prefix + name_of(path), dense, None if _is_written(leaf.dtype) else leaf.dtype)


def _is_written(dtype: torch.dtype) -> bool:
    """Whether DCP writes tensors of this type: it needs the size of an element."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return True
    try:
        torch.iinfo(dtype)
    except TypeError:
        return False
    return True


def divided(tree: Any, writers: Writers) -> Any:
    """``tree`` with placeholders for the tensors that other ``writers`` write. Ranks of the first shard of their layers
    write those that are not sharded."""
    sizes, grid = dict[str, int](), writers.grid

    def measure(path: Path, leaf: Any) -> Any:
        if isinstance(leaf, Part | torch.Tensor) and grid.own(leaf.dims if isinstance(leaf, Part) else ()):
            sizes[name_of(path)] = (leaf.local if isinstance(leaf, Part) else leaf).nbytes
        return leaf

    pytree.tree_map_with_path(measure, tree, is_leaf=is_part)
    mine = writers.takes(sizes)

    def keep(path: Path, leaf: Any) -> Any:
        return leaf if name_of(path) in mine else placeholder(path, leaf, grid.prefix)

    return pytree.tree_map_with_path(keep, tree, is_leaf=is_part)
