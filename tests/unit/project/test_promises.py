"""The pages of promises and hard cases name tests; they must exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def defined_tests() -> set[str]:
    return {
        name
        for folder in ("tests", "e2e")
        for file in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }


def test_every_promise_is_held_by_tests_that_exist() -> None:
    defined = defined_tests()
    rows = re.findall(r"^\| (\d) \|.*\| ([^|]+) \|$", (ROOT / "docs/promises.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == list("12345678")
    for number, tests in rows:
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named, f"promise {number} names no test"
        assert named <= defined, f"promise {number} names tests that do not exist: {sorted(named - defined)}"


def test_every_hard_case_is_shown_by_tests_that_exist() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", (ROOT / "docs/hard-cases.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 14
    for case, tests in rows:
        missing = set(re.findall(r"`(test_\w+)`", tests)) - defined_tests()
        assert not missing, f"{case}: tests that do not exist: {sorted(missing)}"
