"""Pages name tests and places in the code: they exist, and CI runs at least one test for each promise."""

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
        marks = [ast.unparse(n) for n in module.body if isinstance(n, ast.Assign)]
        whole = any("pytestmark" in mark and "nightly" in mark for mark in marks)
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                marked = any(ast.unparse(d) == "pytest.mark.nightly" for d in node.decorator_list)
                found[node.name] = not (whole or marked)
    return found


def named(cell: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", cell))


def test_every_promise_has_existing_tests_and_at_least_one_runs_in_ci() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (ROOT / "docs/promises.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 13)]
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


PACKAGES = {
    "operator": ROOT / "operator/elastrain_operator",
    "resource": ROOT / "trainer/elastrain_resource",
    "trainer": ROOT / "trainer/elastrain",
}


def test_every_decision_of_the_architecture_page_is_where_the_page_says() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## Where it is decided")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+\?) \| (\w+): `([\w/.]+)`: `([\w.]+)` \| `(test_\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 20, "rows were not found: has their form changed?"
    wrong = [question for question, package, file, name, test in rows if not _is_there(PACKAGES[package] / file, name)]
    assert not wrong, f"docs/architecture.md: these are decided elsewhere now; correct the rows: {wrong}"
    missing = {test for *_, test in rows} - known().keys()
    assert not missing, f"docs/architecture.md names tests that do not exist: {sorted(missing)}"


def _is_there(file: Path, name: str) -> bool:
    """Whether ``file`` defines ``name``: a function, a class, or a method as ``Class.method``."""
    body: list[ast.stmt] = ast.parse(file.read_text()).body if file.is_file() else []
    for part in name.split("."):
        found = [
            n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == part
        ]
        if not found:
            return False
        body = found[0].body
    return True
