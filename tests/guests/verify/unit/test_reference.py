"""The reference is a second implementation: short, and without the code that it judges."""

from __future__ import annotations

from pathlib import Path

REFERENCE = Path(__file__).parents[4] / "trainer" / "elastrain_verify" / "rank" / "reference.py"
LINES = 250


def test_reference_is_short_enough_to_be_read_at_once() -> None:
    assert REFERENCE.read_text().count("\n") <= LINES
