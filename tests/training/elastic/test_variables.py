"""`job.variables()`: values of a script that travel with the state."""

from __future__ import annotations

import pytest

from elastrain.elastic import arguments
from elastrain.elastic.contract import Call, Contract, Phase
from elastrain.elastic.state.tracked import Variables


def variables(phase: Phase = Phase.BETWEEN, **values: object) -> Variables:
    return Variables(values, lambda name: Contract(lambda: phase).acts(Call.SET, name))


def test_values_are_read_set_and_sent_by_name():
    here, there = variables(best=0.0, bad=0), variables(best=0.0, bad=0)
    here.best, here.bad = 0.9, here.bad + 1
    there.load_state_dict(here.state_dict())
    assert (there.best, there.bad) == (0.9, 1)


def test_value_that_an_older_state_does_not_have_keeps_its_beginning():
    kept = variables(best=0.0, bad=2)
    kept.load_state_dict({"best": 0.5, "gone": 1})
    assert kept.state_dict() == {"best": 0.5, "bad": 2}


def test_error_names_the_values_if_another_is_set():
    with pytest.raises(AttributeError, match=r"bst: job.variables\(\) was called with best, bad"):
        variables(best=0.0, bad=0).bst = 1.0


@pytest.mark.parametrize(("unnamed", "values"), [((), {}), ((0.0,), {}), ((0.0,), {"bad": 0})])
def test_error_shows_the_call_if_a_value_has_no_name(unnamed, values):
    with pytest.raises(TypeError, match=r"kept = job.variables\(best=0.0, bad=0\)"):
        arguments.variables(*unnamed, **values)


@pytest.mark.parametrize("phase", [Phase.PASSED, Phase.WARM_UP, Phase.PARTIAL, Phase.DISCARDED, Phase.LEAVING])
def test_value_stays_if_nothing_counts(phase):
    """A process that passes loops of the others must not count them as bad ones, and leave."""
    kept = variables(phase, bad=0)
    kept.bad += 1
    assert kept.bad == 0


def test_error_names_the_value_if_it_is_set_in_a_body_that_may_be_repeated():
    with pytest.raises(RuntimeError, match=r"job.variables\(\).bad = … .*: set it behind job.backward\(\)"):
        variables(Phase.FRESH, bad=0).bad = 1
