"""To add a field, a variable, a reason or a figure of the status takes at most five places (CONTRIBUTING.md)."""

from __future__ import annotations

import places
import pytest

ROWS = places.rows()


def test_the_kinds_of_changes_are_listed() -> None:
    assert len(ROWS) >= 5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example)
def test_a_change_takes_at_most_five_places_and_the_page_names_them(row: places.Row) -> None:
    assert places.places(row.example) == row.files
    assert len(row.files) <= 5
