"""Mutants of the decisions: each is a program, and another one."""

from __future__ import annotations

import ast

import pytest

import mutate
from mutation import mutants


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("if a < b: pass", "a <= b"),
        ("x = a and b", "a or b"),
        ("x = a + b", "a - b"),
        ("x = not a", "a"),
        ("x = 3", "7"),
        ("x: int = False", "True"),
        ("x = min(a, b)", "max(a, b)"),
        ("x = a if b else c", "c if b else a"),
        ("def f(): return a is None", "a is not None"),
    ],
)
def test_each_rule_changes_its_expression(text: str, after: str):
    assert after in [m.after for m in mutants("f.py", text)]


@pytest.mark.parametrize("text", ['"""Text."""', 'raise E("a" + b)', "assert a < b", "x: a | b", 'x = f"{a + b}"'])
def test_texts_annotations_and_errors_are_left_alone(text: str):
    assert not list(mutants("f.py", text))


def test_only_the_place_changes_in_a_line_that_is_not_ascii():
    (mutant,) = mutants("f.py", 'x = "äöü", a == b  # ü\ny = 1.5\n')
    assert mutant.text == 'x = "äöü", (a != b)  # ü\ny = 1.5\n'


def test_every_decision_has_mutants_that_are_programs_and_tests_that_exist():
    for name, tests in mutate.DECISIONS.items():
        found = mutate.draw(mutate.everything([name]), 5, seed=0)
        assert found, name
        for m in found:
            assert ast.dump(ast.parse(m.text)) != ast.dump(ast.parse((mutate.ROOT / m.file).read_text()))
        assert all((mutate.ROOT / t).exists() for t in tests), tests


def test_the_same_seed_draws_the_same_mutants():
    found = mutate.everything(["trainer/elastrain/rendezvous/election.py"])
    assert mutate.draw(found, 3, seed=1) == mutate.draw(found, 3, seed=1) != mutate.draw(found, 3, seed=2)
