"""The shape of a replica: the ranks that hold one copy of the model, as a mesh of named dimensions. Pure.

``spec.parallelism`` spells it by ``mesh``, or for the two common shapes by ``shards`` and ``tensor``; everything else
of elastrain knows the :class:`Shape` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from elastrain.api import rules
from elastrain.api.base import ApiModel, rule_broken

SHARDS, TENSOR = "dp_shard", "tp"
"""Names of the dimensions that ``shards`` and ``tensor`` make."""


class Divides(StrEnum):
    """What the ranks along a dimension divide among themselves. Decides who computes which samples, and which sums a
    gradient needs."""

    BATCH = "Batch"
    """The samples: each rank has its own. Gradients are summed over them."""
    SEQUENCE = "Sequence"
    """The tokens of each sample: all ranks have the same samples, and each computes its part of the loss. Gradients are
    summed over them."""
    TENSORS = "Tensors"
    """The tensors of a layer: all ranks have the same samples and the same loss, and compute it together."""
    LAYERS = "Layers"
    """The layers: all ranks have the same samples, each has parameters of its own, and one of them has the loss."""


_KNOWN = {name: Divides(divides) for name, divides in rules.KNOWN_DIMENSIONS.items()}


class Dimension(NamedTuple):
    """Of a shape."""

    name: str
    size: int
    """Ranks along it."""
    divides: Divides


class MeshDimension(ApiModel):
    """A dimension of the mesh of a replica, as users write it."""

    name: Annotated[str, Field(pattern=rules.DIMENSION, max_length=rules.LONGEST_DIMENSION)]
    """As the script uses it: `job.mesh["tp"]`. One dimension is `dp_shard`, over which `fully_shard` spreads the
    parameters; others are free."""
    size: Annotated[int, Field(ge=1, le=rules.WIDEST_DIMENSION)]
    """Ranks along it. With 1 the same script runs without this kind of parallelism."""
    divides: Divides | None = None
    """What these ranks divide among themselves. Batch: the samples. Sequence: the tokens of each sample. Tensors: the
    tensors of a layer. Layers: the layers, as stages of a pipeline. Absent: Batch for `dp_shard` and `ep`, Sequence
    for `cp`, Tensors for `tp`, Layers for `pp`; other names need it."""

    @model_validator(mode="after")
    def _is_known(self) -> MeshDimension:
        if self.divides is None and self.name not in rules.KNOWN_DIMENSIONS:
            raise rule_broken(rules.DIVIDES_IS_KNOWN.words, self.name)
        if self.name == SHARDS and self.divides not in (None, Divides.BATCH):
            raise rule_broken(rules.SHARDS_DIVIDE_THE_BATCH.words, self.name)
        return self


@dataclass(frozen=True, slots=True)
class Shape:
    """The mesh of one replica. Ranks of a replica are numbered along the last dimension first, from 0: its *shards*."""

    dimensions: tuple[Dimension, ...] = ()
    """Outermost first. Empty: a replica is one rank."""

    @classmethod
    def of(cls, shards: int, tensor: int = 1) -> Shape:
        """What ``shards`` and ``tensor`` are short for; ``tensor`` must divide ``shards``."""
        inner = (Dimension(TENSOR, tensor, Divides.TENSORS),) if tensor > 1 else ()
        return cls((*cls.flat(shards // tensor).dimensions, *inner)) if shards > 1 else cls()

    @classmethod
    def flat(cls, shards: int) -> Shape:
        """One dimension, over which ``fully_shard`` spreads the parameters."""
        return cls((Dimension(SHARDS, shards, Divides.BATCH),))

    @classmethod
    def from_mesh(cls, mesh: Iterable[MeshDimension]) -> Shape:
        return cls(tuple(Dimension(d.name, d.size, d.divides or _KNOWN[d.name]) for d in mesh))

    @property
    def mesh(self) -> tuple[MeshDimension, ...]:
        """As users write it, with all fields."""
        return tuple(MeshDimension(name=d.name, size=d.size, divides=d.divides) for d in self.dimensions)

    @property
    def size(self) -> int:
        """Ranks of a replica."""
        return prod(d.size for d in self.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dimensions)

    @property
    def short(self) -> tuple[int, int] | None:
        """``shards`` and ``tensor`` that mean the same; None: no such pair does."""
        tensor = self.dimensions[-1].size if len(self.dimensions) > 1 else 1
        return (self.size, tensor) if Shape.of(self.size, tensor) == self else None

    def named(self, name: str) -> Dimension:
        """Raises ``KeyError``."""
        return {d.name: d for d in self.dimensions}[name]

    def dividing(self, *what: Divides) -> tuple[str, ...]:
        """Names of the dimensions whose ranks divide one of these."""
        return tuple(d.name for d in self.dimensions if d.divides in what)

    # -- places ------------------------------------------------------------------------------------------------------
    def coordinates(self, rank: int) -> dict[str, int]:
        """Of ``rank`` of a generation in its replica, by the name of the dimension."""
        number, found = rank % self.size, dict[str, int]()
        for d in reversed(self.dimensions):
            number, found[d.name] = divmod(number, d.size)
        return found

    def number(self, coordinates: Mapping[str, int]) -> int:
        """The shard at these ``coordinates``, of all dimensions."""
        number = 0
        for d in self.dimensions:
            number = number * d.size + coordinates[d.name]
        return number

    def along(self, rank: int, *names: str) -> list[int]:
        """The ranks of the replica of ``rank`` whose coordinates differ from its own at most in these dimensions, in
        order; this rank among them."""
        first, own = rank - rank % self.size, self.coordinates(rank)
        return [
            first + shard
            for shard in range(self.size)
            if all(own[name] == at for name, at in self.coordinates(shard).items() if name not in names)
        ]

    def twins(self, rank: int, world_size: int, *names: str) -> list[int]:
        """The ranks of all replicas whose coordinates differ from those of ``rank`` at most in these dimensions."""
        mates = self.along(rank % self.size, *names)
        return [replica + mate for replica in range(0, world_size, self.size) for mate in mates]

    def stage(self, rank: int) -> int:
        """Number of the part of the model's layers that ``rank`` has."""
        own, stage = self.coordinates(rank), 0
        for d in self.dimensions:
            if d.divides is Divides.LAYERS:
                stage = stage * d.size + own[d.name]
        return stage

    @property
    def stages(self) -> int:
        """Parts into which the layers are divided."""
        return prod(d.size for d in self.dimensions if d.divides is Divides.LAYERS)

    # -- the batch ---------------------------------------------------------------------------------------------------
    def part(self, rank: int, world_size: int) -> tuple[int, int]:
        """The part of a global batch that ``rank`` has, and the number of parts. Ranks that differ in a dimension that
        divides the batch, or in their replica, have different parts; others have the same."""
        own, part, parts = self.coordinates(rank), rank // self.size, max(world_size // self.size, 1)
        for d in self.dimensions:
            if d.divides is Divides.BATCH:
                part, parts = part * d.size + own[d.name], parts * d.size
        return part, parts

    def counts(self, rank: int) -> bool:
        """Whether ``rank`` counts the samples of its part: one of those that have the same."""
        own = self.coordinates(rank)
        return all(own[d.name] == 0 for d in self.dimensions if d.divides is not Divides.BATCH)

    def has_loss(self, rank: int) -> bool:
        """Whether ``rank`` has a part of the loss that no other rank counts: along tensors the first one; along layers
        the last one, the end of the pipeline; along a sequence each."""
        own = self.coordinates(rank)
        first = all(own[name] == 0 for name in self.dividing(Divides.TENSORS))
        return first and all(own[name] == self.named(name).size - 1 for name in self.dividing(Divides.LAYERS))

    @property
    def sequence_parts(self) -> int:
        """Ranks among which the tokens of a sample are divided."""
        return prod(d.size for d in self.dimensions if d.divides is Divides.SEQUENCE)


ONE_RANK = Shape()
