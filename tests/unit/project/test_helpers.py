"""Each test helper is defined once: tests/shared has those of several areas."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
SHARED = ("builders", "conditions", "workers")
"""Modules of tests/shared whose names mean the same everywhere."""
SHORT = 3
"""Lines of a body that may be written twice: a default or two around a shared helper."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def helpers(path: Path) -> list[Function]:
    """A module's functions, fixtures and tests left out."""
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, Function)]
    return [f for f in found if not f.name.startswith(("test_", "pytest_")) and "fixture" not in decorators(f)]


def decorators(function: Function) -> str:
    return " ".join(ast.unparse(decorator) for decorator in function.decorator_list)


def body(function: Function) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) else function.body


def lines(function: Function) -> int:
    return body(function)[-1].end_lineno - body(function)[0].lineno + 1 if body(function) else 0


@cache
def modules() -> dict[str, list[Function]]:
    return {str(path.relative_to(ROOT)): helpers(path) for path in sorted((ROOT / "tests").rglob("*.py"))}


def test_shared_helpers_are_defined_once() -> None:
    shared = {f.name for module in SHARED for f in modules()[f"tests/shared/{module}.py"]} | {
        "wait_until",
        "eventually",
    }
    assert {"generation", "worker", "until"} <= shared
    again = [
        f"{module}: {f.name}"
        for module, functions in modules().items()
        for f in functions
        if f.name in shared and lines(f) > SHORT and not module.startswith("tests/shared/")
    ]
    assert not again, "use those of tests/shared, or name them after what is special about them"


def test_no_two_modules_have_a_helper_with_the_same_body() -> None:
    same = defaultdict(list)
    for module, functions in modules().items():
        for f in functions:
            if lines(f) > SHORT:
                same["\n".join(ast.dump(statement) for statement in body(f))].append(f"{module}: {f.name}")
    assert not [where for where in same.values() if len(where) > 1], "one of them belongs in tests/shared"
