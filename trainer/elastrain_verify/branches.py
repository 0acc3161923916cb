"""The branches that loop bodies take by value, as far as they change tracked objects of the script's own. Pure.

A body that is discarded must leave no trace in any of them, so a rank is killed in one of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastrain_verify.history import History

MOST = 3
Branches = Mapping[int, frozenset[str]]
"""By committed steps before: names of what the body has changed."""


def branches(truth: History) -> Branches:
    """Of a reference."""
    own = tuple(f"{name}." for name in truth.facts.get("own", ()))
    begun = {b.step: b.entries for p in truth.processes for b in p.begun}
    committed = {c.step - 1: c.entries for p in truth.processes for c in p.committed if not c.ended}
    return {
        step: frozenset(n for n, v in before.items() if n.startswith(own) and committed[step].get(n, v) != v)
        for step, before in sorted(begun.items())
        if own and step in committed
    }


def moments(found: Branches, steps: int) -> list[int]:
    """After how many of ``steps`` a rank is killed in a body: once in each branch, near the middle; the branch of the
    first body last, since warm-ups may have shown it. Not in the first body, and not in the last ones."""
    middle = steps // 2
    near = sorted(range(1, middle + 1), key=lambda step: middle - step)
    chosen: dict[frozenset[str], int] = {}
    for step in near:
        chosen.setdefault(found.get(step, frozenset()), step)
    others = [step for changed, step in chosen.items() if changed != found.get(0)]
    return (others + [step for changed, step in chosen.items() if changed == found.get(0)])[:MOST]
