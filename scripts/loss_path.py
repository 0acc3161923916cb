"""Counts what a reader opens to change what follows the loss of a rank: the table of docs/architecture.md.

Files, lines, classes, and the state of the classes that the table names: fields of dataclasses, and attributes that
``__init__`` sets.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = "## The path of a lost rank"
PACKAGE = ROOT / "trainer/elastrain"


@dataclass(frozen=True)
class LossPath:
    """The path, as the page has it."""

    files: tuple[Path, ...]
    lines: int
    classes: int
    stateful: frozenset[str]
    """Names of the classes that the table names as those with state."""
    fields: dict[str, int]
    """By class of these; in two files (the agent's and the rank's ``Core``) of both together."""

    def __str__(self) -> str:
        state = ", ".join(f"{name} {count}" for name, count in self.fields.items())
        return (
            f"{len(self.files)} files, {self.lines:,} lines, {self.classes} classes, "
            f"{sum(self.fields.values())} fields of state ({state})"
        )


def read(page: str) -> LossPath:
    """The path in the text of ``page``. Raises ``OSError`` for a file that does not exist."""
    section = page.partition(SECTION)[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")][2:]
    files = tuple(dict.fromkeys(PACKAGE / name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row[1])))
    stateful = frozenset(name for row in rows for name in re.findall(r"`(\w+)`", row[2]))
    texts = [file.read_text() for file in files]
    classes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    fields: Counter[str] = Counter()
    for node in classes:
        if node.name in stateful:
            fields[node.name] += _fields(node)
    return LossPath(files, sum(text.count("\n") for text in texts), len(classes), stateful, dict(fields))


def _fields(of: ast.ClassDef) -> int:
    found = {n.target.id for n in of.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for method in of.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            found |= {
                node.attr
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
            }
    return len(found)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


if __name__ == "__main__":
    sys.stdout.write(f"{read((ROOT / 'docs/architecture.md').read_text())}\n")
