"""Options that a framework's adapter refuses."""

from __future__ import annotations

from enum import Enum

import pytest

from elastrain_frameworks.refusals import Refusal, refuse


class Strategy(Enum):
    GROUPED = "Grouped"


TABLE = (
    Refusal("sharding", "replicate"),
    Refusal("accumulate", "leave it out", lambda n: n != 1),
    Refusal("strategy", "shuffle", lambda s: s is Strategy.GROUPED),
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sharding": "full"}, "sharding: full: not in an elastic job; replicate"),
        ({"accumulate": 2}, "accumulate: 2: not in an elastic job; leave it out"),
        ({"strategy": Strategy.GROUPED}, "strategy: grouped: not in an elastic job; shuffle"),
    ],
)
def test_option_value_and_way_out_are_named_if_an_option_has_no_meaning(values, message):
    with pytest.raises(ValueError, match=message):
        refuse(values, TABLE)


@pytest.mark.parametrize("values", [{}, {"sharding": None, "accumulate": None}, {"sharding": "", "accumulate": 1}])
def test_nothing_is_refused_if_options_are_absent_or_off(values):
    refuse(values, TABLE)


def test_all_options_are_named_at_once_if_several_have_no_meaning():
    with pytest.raises(ValueError, match=r"batch: 0: required\nsharding: full: .*\naccumulate: 2: "):
        refuse({"sharding": "full", "accumulate": 2}, TABLE, also=["batch: 0: required"])
