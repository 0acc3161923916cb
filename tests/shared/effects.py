"""Queries of the effects of an agent's core."""

from __future__ import annotations


def only(effects, kind):
    found = [e for e in effects if isinstance(e, kind)]
    assert len(found) == 1, effects
    return found[0]


def none(effects, *kinds):
    assert not [e for e in effects if isinstance(e, kinds)], effects
