"""Which variables of the script are others than in the reference, as its loop bodies begin. Pure.

They are not tracked, so they may be. Of a run that parts from the reference they name the cause, and of one that does
not, what no step depended on yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from elastrain_verify.compare import Bounds, equal
from elastrain_verify.history import Begun, History

ROUNDED = Bounds(1e-6)
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Variable:
    """One that differs."""

    path: str
    """As ``scale.good``."""
    expected: Any
    found: Any
    worker: str

    @property
    def name(self) -> str:
        """Of the variable that holds it."""
        return re.sub(r"^len\(|\W.*", "", self.path)

    def line(self, script: str) -> int:
        """The last line of the text ``script`` that sets it, or calls it; 0: none that is found."""
        name = re.escape(self.name)
        sets = re.compile(rf"\b{name}\b[\w.\[\]]*(\s*[-+*/|&@%]*=(?!=)|\.\w+\()|\b(for|as)\b.*\b{name}\b.*:")
        return max((n for n, line in enumerate(script.splitlines(), 1) if sets.search(line)), default=0)


def one_each(found: Iterable[Variable]) -> list[Variable]:
    """The first value of each variable, at most :data:`MOST_NAMED`."""
    return list({v.name: v for v in reversed([*found])}.values())[::-1][:MOST_NAMED]


def ever(truth: History, run: History) -> dict[str, Variable]:
    """Those that differ as any body begins, by path."""
    begun = [(process.worker, b) for process in run.processes for b in process.begun if not b.warm_up]
    return {path: v for worker, b in reversed(begun) for path, v in _apart(truth, b, worker, frozenset()).items()}


def causes(truth: History, run: History, *, before: int, but: Set[str] = frozenset()) -> list[Variable]:
    """Those that differ as the last body of each process begins of which at most ``before`` steps were committed, or
    the first one of its own data. ``but``: paths that are left out."""
    found: dict[str, Variable] = {}
    for process in run.processes:
        bodies = [b for b in process.begun if not b.warm_up]
        for begun in [b for b in bodies if b.step <= before][-1:] or bodies[:1]:
            found = _apart(truth, begun, process.worker, but) | found
    return list(found.values())


def lasting(truth: History, run: History, *, but: Set[str]) -> list[Variable]:
    """Those that differ in more than one body, or that the reference keeps over bodies: others are new in each."""
    pairs = [(a.variables, b.variables) for p in truth.processes for a, b in pairwise(p.begun)]
    kept = {path for a, b in pairs for path in a if a[path] == b.get(path) and not isinstance(a[path], bool)}
    found: dict[str, Variable] = {}
    for process in run.processes:
        bodies = [_apart(truth, b, process.worker, but) for b in process.begun if not b.warm_up]
        for number, (body, after) in enumerate(pairwise([*bodies, {}])):
            remain = after.keys() | (kept if not number else set())
            found |= {path: variable for path, variable in body.items() if path in remain}
    return list(found.values())


def _apart(truth: History, begun: Begun, worker: str, but: Set[str]) -> dict[str, Variable]:
    expected = next((b.variables for p in truth.processes for b in p.begun if b.step == begun.step), {})
    both = {path: (value, begun.variables[path]) for path, value in expected.items() if path in begun.variables}
    apart = {path: values for path, values in both.items() if not equal(path, *values, ROUNDED, {})}
    return {path: Variable(path, *values, worker) for path, values in apart.items() if path not in but}
