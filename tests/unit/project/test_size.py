"""The freeze: no count of the house rises (`scripts/size.py` prints them). Each cut lowers its bound here."""

from __future__ import annotations

import loss_path
import pytest
import size

BOUNDS = {
    "lines that a worker loads": 33_439,
    "lines of trainer/elastrain": 33_506,
    "lines of the operator": 18_318,
    "lines of the operator's core": 15_989,
    "lines of bench": 8_991,
    "lines of tests and e2e": 88_158,
    "files on the path of a lost rank": 50,
    "lines on the path of a lost rank": 10_638,
    "classes on the path of a lost rank": 149,
    "fields of state on the path of a lost rank": 384,
    "imports of elastic/loop.py": 27,
    "callables of elastic/ that others set": 3,
    "leaves of spec": 44,
    "leaves of status": 82,
    "documented reasons": 122,
    "values of the chart": 88,
    "words of the pages": 74_622,
}
COUNTS = size.counts()


def test_every_count_has_a_bound() -> None:
    assert COUNTS.keys() == BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_no_count_rises(name: str) -> None:
    assert COUNTS[name] <= BOUNDS[name], f"{name}: a change that needs more takes as many away elsewhere"


def test_every_class_exists_whose_state_the_page_names() -> None:
    path = loss_path.read((size.ROOT / "docs/architecture.md").read_text())
    assert path.fields.keys() == path.stateful
