"""Decision records: one living record per subject, and each number that is cited stands."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/decisions"
RECORDS = {file.name[:4]: file for file in FOLDER.glob("[0-9]*.md")}
CITED = re.compile(r"\b[Dd]ecisions?[ /(\[]+0*([1-9]\d{0,3})(?: and (\d{1,4}))?(?![.,]?\d|\*)|decisions/(\d{4})")
"""``decision 41``, ``decisions 41 and 42``, ``docs/decisions/0041``."""
HISTORY = {"CHANGELOG.md"}
PLACES = (
    "*.md", "mkdocs.yml", "docs/**/*.md", "examples/**/*.md", "e2e/**/*.py", "scripts/*.py", "bench/**/*.py",
    "tests/**/*.py", "tests/seeded/*.patch",
    "trainer/**/*.py", "operator/**/*.py", "charts/**/*.yaml", "charts/**/*.tpl",
)  # fmt: skip


def folded() -> list[str]:
    """Numbers that another record took over."""
    return [
        number
        for file in RECORDS.values()
        for number in re.findall(r"^- (\d{4}): ", file.read_text().partition("## Records folded")[2], re.MULTILINE)
    ]


@cache
def citations() -> dict[str, set[str]]:
    """Cited number -> the files of the repository that cite it, outside of the records' own index."""
    found: dict[str, set[str]] = {}
    for file in (file for place in PLACES for file in ROOT.glob(place)):
        name = str(file.relative_to(ROOT))
        if name in HISTORY or name == "docs/decisions/index.md":
            continue
        for match in CITED.finditer(file.read_text()):
            for number in filter(None, match.groups()):
                found.setdefault(f"{int(number):04}", set()).add(name)
    return found


def test_each_subject_has_one_record_and_there_are_few() -> None:
    assert len(RECORDS) == len(list(FOLDER.glob("[0-9]*.md"))), "two records have one number"
    assert len(RECORDS) <= 40, "fold the new record into the one of its subject"


def test_every_number_stands_or_is_folded_into_one_record() -> None:
    twice = [number for number, times in Counter(folded()).items() if times > 1]
    assert not twice, f"folded into two records: {twice}"
    assert not set(folded()) & RECORDS.keys(), "a record that was folded is still a file"


def test_every_cited_record_exists() -> None:
    cited = citations()
    assert len(cited) > 15, "citations were not found: has their form changed?"
    missing = {number: sorted(files) for number, files in cited.items() if number not in RECORDS}
    assert not missing, f"no such record (docs/decisions/index.md lists where former numbers went): {missing}"


def test_the_index_lists_every_record_and_every_former_number() -> None:
    index = (FOLDER / "index.md").read_text()
    for number, file in RECORDS.items():
        assert f"| [{number}]({file.name}) |" in index, f"run `make reference`: {file.name} is not in the index"
    for number in folded():
        assert re.search(rf"^\| {number} \| ", index, re.MULTILINE), (
            f"run `make reference`: {number} is not in the index"
        )
