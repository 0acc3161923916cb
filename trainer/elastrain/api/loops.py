"""What tells the loops of a script apart."""

from __future__ import annotations

from typing import NamedTuple


class LoopId(NamedTuple):
    """Which loop of the script; a later one is greater.

    The end alone does not tell loops apart: one that was left by ``break`` may be followed by another up to the same
    step. All loops with one end are begun by every process that begins the first of them, so they can be counted;
    others cannot, since ``job.epochs`` leaves out what is over.
    """

    end: int = 0
    """Committed steps at which it ends."""
    nth: int = 0
    """How many loops of the script up to the same step were over before it."""


NO_LOOP = LoopId()
"""Before all loops; or the loop is not known."""
