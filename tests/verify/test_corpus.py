"""``elastrain verify`` finds planted faults and names their kind, and raises no false alarm."""

from __future__ import annotations

from collections import Counter

import pytest

from corpus import CLEAN, FAULTS, KINDS, Script

IN_CI = ("not-repeatable-01", "body-01", "two-workers-01")
"""The others take minutes."""


def _of_ci(script: Script) -> bool:
    return script.name.startswith(IN_CI)


def scripts(found: list[Script]) -> list[object]:
    return [pytest.param(s, id=s.name, marks=() if _of_ci(s) else pytest.mark.nightly) for s in found]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("script", scripts(FAULTS))
def test_fault_is_found_and_its_kind_named(judge, script) -> None:
    answer = judge(script)
    assert answer.exit_code == (2 if script.kind == "not-repeatable" else 1), f"{script.about}\n{answer}"
    assert answer.fault.name == script.says, f"{script.about}\n{answer}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("script", scripts(CLEAN))
def test_no_false_alarm_for_a_script_that_is_unusual_and_right(judge, script) -> None:
    answer = judge(script)
    assert answer.exit_code == 0, f"{script.about}\n{answer}"
    assert not [note for note in answer.notes if note.startswith("not run")], "a disturbance did not take place"


def test_each_kind_is_planted_three_times_or_more_and_in_each_form_of_script() -> None:
    kinds, forms = Counter(s.kind for s in FAULTS), {(s.kind, s.form) for s in FAULTS}
    assert min(kinds[kind] for kind in KINDS) >= 3
    assert forms == {(kind, form) for kind in KINDS for form in ("plain", "sharded", "framework")}
