"""What ranks of a group hold alike: parameters that a dimension of the mesh has not cut are the same along it.

A sum that the script, or a plan of torch, leaves out makes them differ, and every rank trains another model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch import nn

from elastrain.api.shape import Shape
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind, RanksDiverged
from elastrain.elastic.state import digest
from elastrain.elastic.strategies.sharding import placed

_SHOWN = 3
"""Names of parameters in a message."""


def compare(module: nn.Module, shape: Shape, communicator: Communicator) -> None:
    """All ranks of a generation call it, with states of the same step.

    Raises ``RanksDiverged`` naming the dimension, the ranks and the parameters, and ``GenerationBroken``.
    """
    dimensions = [name for name in placed.may_be_alike(shape) if shape.named(name).size > 1]
    if not dimensions:
        return
    parts = {name: p.detach().to_local() for name, p in module.named_parameters()}
    digests = dict(zip(parts, digest.of_tensors([*parts.values()]), strict=True))
    cuts = {name: placed.cut(p) for name, p in module.named_parameters()}
    own = [digest.of_value({n: number for n, number in digests.items() if d not in cuts[n]}) for d in dimensions]
    apart = first_apart(communicator.all_gather_ints(own, Kind.REPLICAS), dimensions, shape)
    if apart is None:
        return
    texts = communicator.all_gather_bytes(json.dumps(digests).encode(), Kind.REPLICAS)
    mine, theirs = (json.loads(texts[rank]) for rank in apart[1:])
    names = [n for n in mine if apart[0] not in cuts.get(n, frozenset()) and theirs.get(n) != mine[n]]
    raise RanksDiverged(described(*apart, names, communicator.step))


def first_apart(rows: Sequence[Sequence[int]], dimensions: Sequence[str], shape: Shape) -> tuple[str, int, int] | None:
    """The first of the ``dimensions`` along which two ranks of a group differ, and these ranks. Pure.

    ``rows``: by rank, a number for each dimension.
    """
    for place, name in enumerate(dimensions):
        for rank, row in enumerate(rows):
            first = shape.along(rank, name)[0]
            if rows[first][place] != row[place]:
                return name, first, rank
    return None


def described(dimension: str, one: int, other: int, names: Sequence[str], step: int) -> str:
    """The message. Pure. ``names``: of the parameters in which the ranks ``one`` and ``other`` differ."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"after step {step} rank {one} and rank {other}, along {dimension} of job.mesh, differ in "
        f"{', '.join(names[:_SHOWN])}{more}, which {dimension} has not cut: their gradients lack a sum over it, or "
        "these ranks do not compute the same. Let the plan of the layer (parallelize_module) or the script add it, or "
        "say in spec.parallelism.mesh what the dimension divides (docs/sharded.md)"
    )
