"""`job.variables()`: values of a script that travel with the state."""

from __future__ import annotations

import pytest

from elastrain.elastic.arguments import CHECKS
from elastrain.elastic.state.variables import Variables


def test_values_are_read_set_and_sent_by_name():
    here, there = Variables(best=0.0, bad=0), Variables(best=0.0, bad=0)
    here.best, here.bad = 0.9, here.bad + 1
    there.load_state_dict(here.state_dict())
    assert (there.best, there.bad) == (0.9, 1)


def test_value_that_an_older_state_does_not_have_keeps_its_beginning():
    kept = Variables(best=0.0, bad=2)
    kept.load_state_dict({"best": 0.5, "gone": 1})
    assert kept.state_dict() == {"best": 0.5, "bad": 2}


def test_error_names_the_values_if_another_is_set():
    with pytest.raises(AttributeError, match=r"bst: job.variables\(\) was called with best, bad"):
        Variables(best=0.0, bad=0).bst = 1.0


@pytest.mark.parametrize(("unnamed", "values"), [((), {}), ((0.0,), {}), ((0.0,), {"bad": 0})])
def test_error_shows_the_call_if_a_value_has_no_name(unnamed, values):
    with pytest.raises(TypeError, match=r"kept = job.variables\(best=0.0, bad=0\)"):
        CHECKS["variables"](*unnamed, **values)
