"""One name, one thing: words that the operator's code does not use for its own things (docs/decisions/0081)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
METAPHORS = frozenset({
    "vault", "desk", "turn", "seat", "standing", "scene", "picture", "aside", "pulse", "sight", "told", "asked", "ward",
    "unheard", "unborn", "stranger", "strangers", "stray", "strays", "gone", "torn", "twins", "mate", "mates",
})  # fmt: skip
"""Parts of identifiers. A thing has the name that the field gives it."""
FIELD = frozenset({"GONE", "standing_by"})
"""Identifiers of the field: HTTP's 410 Gone, a spare that stands by."""
NO_ANSWER_OF_WHAT = frozenset({"decide.py", "model.py", "groups.py", "credentials.py", "utils.py", "helpers.py"})
"""Names of modules that say nothing of their subject, or had several."""


@cache
def sources() -> dict[Path, ast.Module]:
    """The operator's modules."""
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.glob("operator/**/*.py"))}


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno


def words(identifier: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", identifier).lower().split("_"))


def test_no_identifier_of_the_operator_is_a_metaphor() -> None:
    found = defaultdict(set)
    for path, tree in sources().items():
        for name, line in identifiers(tree):
            if name not in FIELD and words(name) & METAPHORS:
                found[name].add(f"{path}:{line}")
    assert not found, "\n".join(f"{name}: {', '.join(sorted(where))}" for name, where in found.items())


def test_no_two_classes_of_the_operator_have_one_name() -> None:
    where = defaultdict(list)
    for path, tree in sources().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].append(str(path))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert not twice, f"one name, one thing: {twice}"


def test_no_module_of_the_operator_is_named_without_a_subject() -> None:
    found = [str(path.relative_to(ROOT)) for path in ROOT.glob("operator/**/*.py") if path.name in NO_ANSWER_OF_WHAT]
    assert not found


def test_a_folder_of_the_operator_has_at_most_15_modules() -> None:
    folders = {path.parent for path in ROOT.glob("operator/elastrain_operator/**/*.py")}
    sizes = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert max(sizes.values()) <= 15, sizes
