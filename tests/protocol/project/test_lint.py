"""The linters run with the tests: each step of ``make lint`` is a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMANDS = re.findall(r"^\t\.venv/bin/(.+)$", (ROOT / "Makefile").read_text().partition("\nlint:")[2], re.MULTILINE)[:4]


def test_make_lint_runs_all_linters() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["ruff", "ruff", "mypy", "lint-imports"]


@pytest.mark.timeout(600)  # mypy without its cache, on a busy machine
@pytest.mark.parametrize("command", COMMANDS)
def test_linter_finds_nothing(command: str) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
