"""One place says whether a step counts: ``elastic/commit`` sets the outcome of a step, and no other code does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TRAINER = Path(__file__).parents[3] / "trainer"


def assigned(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Attributes that code sets: by an assignment of any form, or by ``setattr`` with a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and called(node) in ("setattr", "__setattr__"):
            yield from (
                (node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_the_outcome_of_a_step_is_set_in_one_file() -> None:
    """``Step.counts`` is computed from it and cannot be set; no other class of the trainer has a field of this name."""
    places = {
        f"{path.relative_to(TRAINER)}:{line}"
        for path in TRAINER.rglob("*.py")
        for line, name in assigned(ast.parse(path.read_text()))
        if name == "outcome"
    }
    assert {place.split(":")[0] for place in places} == {"elastrain/elastic/commit/step.py"}, sorted(places)


def test_every_form_of_an_assignment_is_seen() -> None:
    code = "step.counts = 1\nstep.counts: int = 1\na, step.counts = 1, 2\nsetattr(step, 'counts', 1)\ndel step.counts"
    assert [name for _, name in assigned(ast.parse(code))] == ["counts"] * 5
