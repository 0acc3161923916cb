"""CONTRIBUTING.md: a file is one thought of up to about 400 lines; a function has up to about 50."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILE_LINES = 420
FUNCTION_LINES = {"trainer": 60, "operator": 50}


def test_no_file_and_no_function_is_longer_than_a_reader_can_hold() -> None:
    longer = []
    for path in [*ROOT.glob("trainer/**/*.py"), *ROOT.glob("operator/**/*.py")]:
        text, name = path.read_text(), path.relative_to(ROOT)
        if (lines := text.count("\n")) > FILE_LINES:
            longer.append(f"{name}: {lines} lines, at most {FILE_LINES}: take a thought out of it")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > (most := FUNCTION_LINES[name.parts[0]]):
                    longer.append(f"{name}:{node.lineno}: {node.name} has {lines} lines, at most {most}")
    assert not longer, "\n".join(longer)
