"""The pages of promises and hard cases name tests: they exist, and CI runs at least one for each promise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


@cache
def known() -> dict[str, bool]:
    """All tests by name; whether CI runs it, on this machine or on its cluster: some are marked ``nightly``."""
    found: dict[str, bool] = {}
    for file in (file for folder in ("tests", "e2e") for file in (ROOT / folder).rglob("test_*.py")):
        module = ast.parse(file.read_text())
        whole = any("pytestmark" in ast.unparse(n) and "nightly" in ast.unparse(n) for n in module.body)
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                marked = any(ast.unparse(d) == "pytest.mark.nightly" for d in node.decorator_list)
                found[node.name] = not (whole or marked)
    return found


def named(cell: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", cell))


def test_every_promise_has_existing_tests_and_at_least_one_runs_in_ci() -> None:
    rows = re.findall(r"^\| (\d) \|.*\| ([^|]+) \|$", (ROOT / "docs/promises.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == list("123456789")
    for number, cell in rows:
        missing = named(cell) - known().keys()
        assert not missing, f"promise {number} names tests that do not exist: {sorted(missing)}"
        assert any(known()[name] for name in named(cell)), f"promise {number}: CI runs none of its tests"


def test_every_hard_case_has_existing_tests() -> None:
    page = (ROOT / "docs/promises.md").read_text().partition("## Hard cases")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", page, re.MULTILINE)
    assert len(rows) >= 14
    for case, cell in rows:
        missing = named(cell) - known().keys()
        assert not missing, f"{case}: tests that do not exist: {sorted(missing)}"
