"""The seeded bugs (tests/seeded) fit the present tree, and the tests that catch them exist. Nothing is run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bugs import FOLDER, Bug, PatchError, applied, read, read_all

ROOT = Path(__file__).parents[3]
BUGS = read_all()
EXAMPLE = """\
# what: the sum is one too large
# breaks: promise 3
# caught by: unit tests/unit/test_sum.py::test_the_sum_is_exact
--- a/trainer/sum.py
+++ b/trainer/sum.py
@@ -1,2 +1,2 @@
 def total(a, b):
-    return a + b
+    return a + b + 1
"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_changes_few_lines_of_the_product_at_one_place(bug: Bug) -> None:
    texts = {file: (ROOT / file).read_text() for file in bug.files}
    assert applied(bug, texts) != texts
    assert all(file.startswith(("trainer/", "operator/", "charts/")) for file in bug.files)
    assert 1 <= bug.changed <= 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_caught_by_a_test_that_exists(bug: Bug) -> None:
    file, _, name = bug.test.partition("::")
    name = name.rpartition("::")[2].partition("[")[0]
    assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{bug.name}: {bug.test}"


def test_the_table_has_a_row_for_every_bug() -> None:
    rows = re.findall(r"^\| (\d+-[a-z0-9-]+) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rows == [bug.name for bug in BUGS]
    numbers = [int(name.partition("-")[0]) for name in rows]
    assert numbers == sorted(set(numbers)), "a bug of deleted code takes its number along"
    assert len(rows) >= 44


def test_a_patch_is_applied_at_any_line(tmp_path: Path) -> None:
    (tmp_path / "01-sum.patch").write_text(EXAMPLE)
    bug = read(tmp_path / "01-sum.patch")
    assert (bug.tier, bug.changed, bug.files) == ("unit", 2, ("trainer/sum.py",))
    text = "import os\n\n\ndef total(a, b):\n    return a + b\n"
    assert applied(bug, {"trainer/sum.py": text}) == {"trainer/sum.py": text.replace("a + b", "a + b + 1")}


def test_a_patch_is_refused_if_it_fits_nowhere_or_twice(tmp_path: Path) -> None:
    (tmp_path / "01-sum.patch").write_text(EXAMPLE)
    bug = read(tmp_path / "01-sum.patch")
    sound = "def total(a, b):\n    return a + b\n"
    for text, places in (("", 0), (sound + sound, 2)):
        with pytest.raises(PatchError, match=f"fits trainer/sum.py at {places} places"):
            applied(bug, {"trainer/sum.py": text})


@pytest.mark.parametrize("line", ["what", "breaks", "caught by"])
def test_a_patch_is_refused_if_its_header_is_not_complete(tmp_path: Path, line: str) -> None:
    (tmp_path / "01-sum.patch").write_text(EXAMPLE.replace(f"# {line}:", "# "))
    with pytest.raises(PatchError, match=f"lacks {line}"):
        read(tmp_path / "01-sum.patch")
