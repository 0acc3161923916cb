"""Variables of the script that are others than in the reference."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain_verify.history import Begun, History, Process
from elastrain_verify.variables import Variable, causes, lasting


def history(**variables: list[Any]) -> History:
    """Of a process that begins its bodies with these values, one after the other."""
    steps = range(len(next(iter(variables.values()))))
    begun = [Begun(n, False, {}, {path: values[n] for path, values in variables.items()}) for n in steps]
    return History([Process("w", 1, begun=begun)])


TRUTH = history(bodies=[0, 1, 2, 3], best=[9.0, 9.0, 5.0, 5.0], norm=[0.1, 0.2, 0.3, 0.4], done=[True] * 4)


@pytest.mark.parametrize(
    ("run", "cause", "last"),
    [
        (history(bodies=[0, 0, 1, 2]), ["bodies"], ["bodies"]),
        (history(best=[1.0, 9.0, 5.0, 5.0]), [], ["best"]),
        (history(norm=[0.7, 0.2, 0.3, 0.4], done=[False, True, True, True]), [], []),
        (history(norm=[0.1, 0.2, 0.3, 0.4 + 1e-12]), [], []),
    ],
)
def test_variable_is_named_if_it_is_another_one_and_is_not_made_anew_in_each_body(run, cause, last) -> None:
    assert [v.path for v in causes(TRUTH, run, before=2)] == cause
    assert [v.path for v in lasting(TRUTH, run, but=set())] == last
    assert causes(TRUTH, run, before=2, but={*cause}) == lasting(TRUTH, run, but={*last}) == []


@pytest.mark.parametrize(
    ("path", "line"), [("bodies", 4), ("len(kept)", 5), ("scale.good", 6), ("i", 3), ("best", 0), ("Count.steps", 0)]
)
def test_line_is_the_last_one_that_sets_the_variable(path: str, line: int) -> None:
    script = "bodies = 0\nbodies == 1\nfor i in loop:\n  bodies += 1\n  kept.append(x)\n  scale.good = 2\n  best == 1"
    assert Variable(path, 1, 2, "w").line(script) == line
