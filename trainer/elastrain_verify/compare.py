"""Finds the first entry, step, run and rank in which the record of a run parts from the reference. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from elastrain_verify.history import BATCH, OWN_LOOP, Committed, Entries, History

ABSENT = "absent"
"""In place of the value of an entry that one side lacks."""
_GRADIENT, _BUFFER = ".grad", " (buffer)"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far entries of a run may be apart from the reference, by the kind of entry (:func:`family`)."""

    relative: float = 1e-10
    """Of the largest element of all entries of a family."""
    measured: Mapping[str, float] | None = None
    """The distance by family, in place of that; None: float64."""

    def of(self, kind: str, scale: float) -> float:
        """The largest permitted distance of two elements."""
        if self.measured is None:
            return self.relative * scale
        return max(self.measured.get(kind, 0.0), self.relative * scale)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a run parts from the reference."""

    step: int
    entry: str
    expected: Any
    found: Any
    rank: int = 0
    world: int = 1
    worker: str = ""
    ranks: tuple[int, ...] = ()
    """All ranks that part in this entry and step."""
    ended: bool = False
    """In the code after the loop."""
    others: int = 0
    """Further entries that part in the same step."""
    lacks: bool = False
    """The run has less of a file."""
    of_a_part: bool = False
    """The run is equal to a reference that computes the same parts of each batch."""
    of_bodies: bool = False
    """A reference that computes the parts one after the other changes a variable of the script in each."""
    of_adapter: bool = False
    """The run is equal to the adapter in plain torch, but not to the framework's own loop."""

    @property
    def all_ranks(self) -> bool:
        """Whether all ranks part alike."""
        return len(self.ranks) >= self.world


def parting(
    reference: History,
    run: History,
    bounds: Bounds = Bounds(),
    alternative: History | None = None,
) -> Parting | None:
    """The first one; None: all that ``run`` has committed is equal to the ``reference`` within ``bounds``.

    ``alternative``: another reference, which computes the parts of ``run``: an entry may be equal to either of them.
    Statistics of parts, floating buffers and averages of them, are then not compared: each rank has its own.
    """
    expected = _by_step(reference)
    others = {} if alternative is None else _by_step(alternative)
    if (twice := _twice(run)) is not None:
        return twice
    by_step: dict[tuple[int, bool], list[Committed]] = {}
    for process in run.processes:
        for c in process.committed:
            if not (c.ended and c.rank):  # after the loop, rank 0 may do more than the others: evaluate, say
                by_step.setdefault((c.step, c.ended), []).append(c)
    for key in sorted(by_step):
        if key not in expected:
            if not key[1]:
                return Parting(key[0], "committed steps", reference.last_step, run.last_step)
            continue
        if (found := _of_step(expected[key], others.get(key), by_step[key], bounds)) is not None:
            return found
    if run.last_step < reference.last_step:
        return Parting(run.last_step, "committed steps", reference.last_step, run.last_step)
    return None


def data_apart(cut: History, run: History) -> Parting | None:
    """The first data of ``run`` that are others than those of ``cut``, a reference that cuts its batches alike."""
    expected = _by_step(cut)
    found = [(c.step, c.rank, c) for p in run.processes for c in p.committed if not c.ended]
    for step, rank, c in sorted(found, key=lambda each: each[:2]):
        batches = expected.get((step, False), {}).get(BATCH, {})
        if not equal_batches({BATCH: batches}, c.entries):
            mine = {place: batches[place] for place in batches.keys() & c.entries[BATCH].keys()}
            return Parting(step, BATCH, mine, c.entries[BATCH], rank, c.world, c.worker, (rank,))
    return None


def _by_step(reference: History) -> dict[tuple[int, bool], Entries]:
    return {(c.step, c.ended): c.entries for p in reference.processes for c in p.committed}


def _twice(run: History) -> Parting | None:
    for process in run.processes:
        for before, after in pairwise(c for c in process.committed if not c.ended):
            # A process that stood by, or was sent a step's result, has not committed the steps of the others.
            if after.step <= before.step or (after.step > before.step + 1 and after.generation == before.generation):
                return Parting(after.step, "committed steps", before.step + 1, after.step, worker=process.worker)
    return None


def _of_step(
    expected: Entries, other: Entries | None, all_ranks: Sequence[Committed], bounds: Bounds
) -> Parting | None:
    scales = scales_of(expected)
    apart = {id(c): differing(expected, c.entries, bounds, scales) for c in all_ranks}
    if other is not None:
        statistics = _statistics(other)
        for c in all_ranks:
            both = set(differing(other, c.entries, bounds, scales_of(other))).intersection(apart[id(c)])
            both = {name for name in both if not _is_of(statistics, name)}
            apart[id(c)] = [name for name in apart[id(c)] if name in both]
    order = {name: number for number, name in enumerate([*expected, *(n for c in all_ranks for n in c.entries)])}
    names = sorted({name for found in apart.values() for name in found}, key=lambda name: order[name])
    if not names:
        return None
    name = names[0]
    which = sorted((c for c in all_ranks if name in apart[id(c)]), key=lambda c: c.rank)
    first = which[0]
    return Parting(
        step=first.step,
        entry=name,
        expected=expected.get(name, ABSENT),
        found=first.entries.get(name, ABSENT),
        rank=first.rank,
        world=first.world,
        worker=first.worker,
        ranks=tuple(c.rank for c in which),
        ended=first.ended,
        others=len(names) - 1,
    )


def _statistics(entries: Entries) -> set[str]:
    """The last names of buffers of a rank's own: floating ones, and BatchNorm's count of its batches."""
    buffers = [name for name, value in entries.items() if name.endswith(_BUFFER) and _is_float(value)]
    return {name.removesuffix(_BUFFER).rpartition(".")[2] for name in buffers} | {"num_batches_tracked"}


def not_put_back(run: History) -> Parting | None:
    """An entry that differs between two executions of one loop body, as they begin: the first of them was to leave no
    trace. Pure."""
    for process in run.processes:
        for before, after in pairwise(process.begun):
            both = before.entries.keys() & after.entries.keys() if before.step == after.step else set()
            statistics = _statistics(after.entries)
            for name in (name for name in after.entries if name in both and not _is_of(statistics, name)):
                one, other = before.entries[name], after.entries[name]
                alike = not isinstance(one, dict) or (one["type"], one["size"]) == (other["type"], other["size"])
                if alike and not equal(name, one, other, Bounds(0.0), {}):
                    return Parting(after.step, name, one, other, worker=process.worker)
    return None


def not_received(reference: History, run: History, bounds: Bounds) -> Parting | None:
    """An entry of a process that has joined a training job, as its first loop body begins: it differs from that of the
    reference, where the script changes nothing between the step before and this body."""
    begun = {b.step: b.entries for p in reference.processes for b in p.begun}
    committed = {c.step: c.entries for p in reference.processes for c in p.committed if not c.ended}
    for process in run.processes:
        first = next((b for b in process.begun if not b.warm_up), None)
        if first is None or first.step not in begun or first.step not in committed:
            continue
        expected, before = begun[first.step], committed[first.step]
        unchanged = {n: v for n, v in expected.items() if n in first.entries and before.get(n) == v}
        apart = differing(unchanged, {n: first.entries[n] for n in unchanged}, bounds, scales_of(expected))
        for name in (name for name in apart if not _is_of(_statistics(expected), name)):
            return Parting(first.step, name, expected[name], first.entries[name], worker=process.worker)
    return None


def _is_of(statistics: set[str], name: str) -> bool:
    return name.removesuffix(_BUFFER).rpartition(".")[2] in statistics


def _is_float(value: Any) -> bool:
    return isinstance(value, dict) and str(value["type"]).startswith("float")


def differing(expected: Entries, found: Entries, bounds: Bounds, scales: Mapping[str, float]) -> list[str]:
    """Names of the entries that are further apart than permitted, those of ``expected`` first."""
    names = dict.fromkeys([*expected, *found])
    if OWN_LOOP in expected:  # it knows nothing of what an adapter adds, nor of its cuts
        known = {_object_of(name) for name in expected}
        names = {name: None for name in names if _object_of(name) in known and name != OWN_LOOP}
    same = equal_batches(expected, found)
    return [BATCH] * (not same) + [
        name
        for name in names
        if name != BATCH and not equal(name, expected.get(name, ABSENT), found.get(name, ABSENT), bounds, scales)
    ]


def equal_batches(expected: Entries, found: Entries) -> bool:
    """Whether the data of a step are equal, where both have cut it in the same places."""
    mine, theirs = (entries.get(BATCH, {}) for entries in (expected, found))
    return all(mine[place] == theirs[place] for place in mine.keys() & theirs.keys())


def _object_of(name: str) -> str:
    return re.split(r"[.\[]", name, maxsplit=1)[0]


def equal(name: str, one: Any, other: Any, bounds: Bounds, scales: Mapping[str, float]) -> bool:
    """Whether two values of the entry ``name`` are equal within ``bounds``."""
    if one == other:
        return True
    if name.endswith(_GRADIENT) and ABSENT in (one, other):  # no gradient and one of zeros make the same update
        return all(value == ABSENT or value["largest"] == 0.0 for value in (one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        if (part := other.get("part")) is not None and "parts" in one:
            if part not in one["parts"]:  # a grid of tensor parallelism
                return True
            one = one["parts"][part]
        kind = family(name)
        return _equal_tensors(one, other, bounds.of(kind, scales.get(kind, one["largest"])))
    if isinstance(one, float | int) and isinstance(other, float | int) and isinstance(one * other, float):
        apart = abs(one - other)
        return apart <= bounds.of(family(name), max(abs(one), abs(other), 1e-3)) or (
            math.isnan(one) and math.isnan(other)
        )
    return False


def _equal_tensors(one: Mapping[str, Any], other: Mapping[str, Any], permitted: float) -> bool:
    if (one["type"], one["size"]) != (other["type"], other["size"]):
        return False
    inexact = str(one["type"]).startswith(("float", "bfloat", "complex"))
    return bool(one["digest"] == other["digest"] or (inexact and distance(one, other) <= permitted))


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far the elements of two tensors of one shape are apart, as far as their records show: at least so much, by
    the sample, or by sums over all elements, which are divided by what rounding adds up to in them."""
    size = max(int(one["size"]), 1)
    found: list[float] = [abs(a - b) for a, b in zip(one["sample"], other["sample"], strict=False)]
    found += [abs(one["largest"] - other["largest"]), abs(one["norm"] - other["norm"]) / math.sqrt(size)]
    found += [abs(one[key] - other[key]) / size for key in ("sum", "absolute")]
    if any(math.isnan(x) for x in found):
        alike = all(math.isnan(one[k]) == math.isnan(other[k]) for k in ("largest", "norm", "sum"))
        return max((x for x in found if not math.isnan(x)), default=0.0) if alike else math.inf
    return max(found)


def family(name: str) -> str:
    """Entries whose sizes are compared with each other: all parameters of a model, all its gradients, and so on.

    A value that is zero but for rounding, as the gradient of a bias before a normalisation, has no scale of its own.
    """
    if name.endswith(_GRADIENT):
        return name.partition(".")[0] + _GRADIENT
    if name.endswith(_BUFFER):
        return name.partition(".")[0] + "." + name.rpartition(".")[2]
    if found := re.match(r"(.*)\.state\[.*\]\.(.*)", name):
        return f"{found[1]}.state.{found[2]}"
    return name.partition(".")[0]


def scales_of(entries: Entries) -> dict[str, float]:
    """The largest element of each family."""
    scales: dict[str, float] = {}
    for name, value in entries.items():
        if isinstance(value, dict) and math.isfinite(value.get("largest", math.nan)):
            kind = family(name)
            scales[kind] = max(scales.get(kind, 0.0), value["largest"])
    return scales
