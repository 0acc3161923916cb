"""From DDP to elastic: the page shows exactly the difference of the two scripts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "04-five-lines"
COMMAND = "diff -w -U 0 examples/04-five-lines/ddp.py examples/04-five-lines/elastic.py"


def difference() -> list[str]:
    """The lines that differ, by the command on the page, without the names and times of the files."""
    run = subprocess.run(COMMAND.split(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    return [line for line in run.stdout.splitlines()[2:] if not line.startswith("@@")]


def test_the_page_shows_the_difference_of_the_two_scripts():
    page = (ROOT / "docs" / "integrations.md").read_text()
    assert COMMAND in page
    (shown,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    expected = "\n".join(difference())
    assert shown.strip() == expected.strip(), f"docs/integrations.md shows another one; it should be:\n{expected}"


def test_five_lines_change_in_addition_to_imports():
    added = [line[1:].strip() for line in difference() if line.startswith("+")]
    changed = [line for line in added if line and not line.startswith(("import ", "from "))]
    assert len(changed) == 5, changed


@pytest.mark.nightly
def test_the_script_before_the_change_works(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(FOLDER / "ddp.py")], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"accuracy on 360 held-out digits: 0\.9", run.stdout)) == 2
