"""The path of a lost rank, as docs/architecture.md lists it: it exists, and does not grow by accident."""

from __future__ import annotations

from pathlib import Path

import loss_path

PATH = loss_path.read((Path(__file__).parents[3] / "docs/architecture.md").read_text())
FILES, LINES, CLASSES, FIELDS = 53, 10_900, 165, 390
"""With room for a few changes. Lower them with the path."""


def test_the_path_of_a_lost_rank_is_no_longer_than_it_was() -> None:
    assert len(PATH.files) <= FILES, PATH
    assert PATH.lines <= LINES, PATH
    assert PATH.classes <= CLASSES, PATH
    assert sum(PATH.fields.values()) <= FIELDS, PATH


def test_every_class_exists_whose_state_the_page_names() -> None:
    assert PATH.fields.keys() == PATH.stateful
