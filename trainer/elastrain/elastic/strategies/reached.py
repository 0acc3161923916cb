"""Whether all ranks of a sharded model have gradients of the same parameters.

FSDP2 sums the gradients that a rank has, one after the other. Ranks whose forwards use different parameters (experts of
a mixture, branches by value) would add gradients of different parameters. Each vote therefore carries numbers for the
set of its rank, whose sums show whether all sets are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from elastrain.elastic.state import digest

_DIGITS, _BASE = 3, 1 << 16
WIDTH = 2 * _DIGITS
"""Numbers in a vote."""
_SHOWN = 3
"""Names of parameters in a message."""
WAY_OUT = (
    "all ranks must use the same parameters in each backward: call net.set_reduce_scatter_unused_params(True), which "
    "gives zeros to unused ones, if each rank runs all layers that fully_shard was called for; or add 0 * output.sum() "
    "of unused layers to the loss (docs/sharded.md)"
)


class Reached:
    """The parameters that the backwards of a step have reached on this rank, in the order of its micro-batches."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: of all parameters."""
        self._names = names
        self._flags: list[tuple[bool, ...]] = []

    def begin_step(self) -> None:
        """Forget those of the step before."""
        self._flags = []

    def add(self, flags: tuple[bool, ...]) -> None:
        """A micro-batch has run backward; by parameter: whether it has a gradient."""
        self._flags.append(flags)

    @property
    def votes(self) -> list[float]:
        """``WIDTH`` numbers, exact in float64, as are their sums over 2**20 ranks."""
        number = digest.of_value(self._flags)
        digits = [number >> (16 * i) & (_BASE - 1) for i in range(_DIGITS)]
        return [float(n) for n in (*digits, *(d * d for d in digits))]

    def describe(self) -> str:
        """By micro-batch, the parameters without a gradient, as JSON."""
        return json.dumps([[n for n, has in zip(self._names, flags, strict=True) if not has] for flags in self._flags])


def alike(sums: Sequence[float], ranks: int) -> bool:
    """Whether all ``ranks`` have voted the same. Pure; equality in the inequality of Cauchy and Schwarz."""
    return all(ranks * int(sums[_DIGITS + i]) == int(sums[i]) ** 2 for i in range(_DIGITS))


def difference(texts: Mapping[int, str], step: int) -> str:
    """Between the first rank and the next one with another set. Pure.

    ``texts``: by rank, of ranks with the same parameters. ``step``: committed steps.
    """
    base = next(iter(texts))
    other = next((rank for rank, text in texts.items() if text != texts[base]), base)
    first, second = json.loads(texts[base]), json.loads(texts[other])
    found = []
    for number, (mine, theirs) in enumerate(zip(first, second, strict=False)):
        if mine != theirs:
            part = f" in micro-batch {number + 1}" if len(first) > 1 else ""
            only = [(base, [n for n in mine if n not in theirs]), (other, [n for n in theirs if n not in mine])]
            found += [f"{_some(names)} have no gradient on rank {rank}{part}" for rank, names in only if names]
    what = "; ".join(found) or "they run other numbers of micro-batches"
    return f"in step {step + 1} rank {base} and rank {other} have gradients of different parameters: {what}: {WAY_OUT}"


def missing(diverged: str, described: str, rank: int) -> str:
    """What ``rank`` adds to an error that was found before the vote, if that is of two sums of gradients. Pure."""
    if diverged.count("of gradients)") < 2:
        return ""
    names = sorted({name for names in json.loads(described) for name in names})
    return f" ({f'rank {rank} has no gradient of {_some(names)}: ' if names else ''}{WAY_OUT})"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
