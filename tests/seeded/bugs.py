"""Seeded bugs: parsing of their patch files, and their application to a text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TIERS = ("unit", "sim", "protocol", "training", "e2e")
"""From the cheapest to the dearest."""


class PatchError(ValueError):
    """A patch that does not fit; the message names patch and place."""


@dataclass(frozen=True, slots=True)
class Hunk:
    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bug:
    """One patch file, ``NN-name.patch``."""

    name: str
    what: str
    breaks: str
    """The promise, or the page that makes it."""
    tier: str
    """Of the cheapest test that fails with the bug."""
    test: str
    """That test, as pytest names it."""
    hunks: tuple[Hunk, ...]
    changed: int
    """Lines added and removed."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(hunk.file for hunk in self.hunks))


def read(path: Path) -> Bug:
    """The bug of a patch file. Raises :class:`PatchError` if a line of the header or the diff is missing."""
    text = path.read_text()
    header = dict(re.findall(r"^# (what|breaks|caught by): (\S.*)$", text, re.MULTILINE))
    if missing := {"what", "breaks", "caught by"} - header.keys():
        raise PatchError(f"{path.name}: the header lacks {', '.join(sorted(missing))}")
    tier, _, test = header["caught by"].partition(" ")
    if tier not in TIERS or not test:
        raise PatchError(f"{path.name}: caught by: {header['caught by']}: must be 'TIER TEST' with a tier of {TIERS}")
    lines = text.splitlines(keepends=True)
    hunks = tuple(_hunks(path.name, lines))
    changed = sum(line[0] in "+-" and line[:4] not in ("+++ ", "--- ") for line in lines)
    return Bug(path.stem, header["what"], header["breaks"], tier, test, hunks, changed)


def read_all(folder: Path = FOLDER) -> list[Bug]:
    """All bugs, by number."""
    return [read(path) for path in sorted(folder.glob("*.patch"), key=_number)]


def applied(bug: Bug, texts: dict[str, str]) -> dict[str, str]:
    """``texts`` (by file) with the bug in them. Raises :class:`PatchError` if a hunk does not fit at exactly one place.

    Unlike ``git apply`` it uses only the lines, not their numbers, which change with every commit.
    """
    changed = dict(texts)
    for hunk in bug.hunks:
        found = changed[hunk.file].count(hunk.before)
        if found != 1:
            raise PatchError(f"{bug.name}: fits {hunk.file} at {found} places, not at one:\n{hunk.before}")
        changed[hunk.file] = changed[hunk.file].replace(hunk.before, hunk.after)
    return changed


def _hunks(name: str, lines: list[str]) -> list[Hunk]:
    hunks: list[Hunk] = []
    file = ""
    for line in lines:
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/").strip()
        elif line.startswith("@@"):
            hunks.append(Hunk(file, "", ""))
        elif hunks and line[0] in " -+":
            kept, last = line[1:], hunks[-1]
            before = last.before + kept if line[0] != "+" else last.before
            after = last.after + kept if line[0] != "-" else last.after
            hunks[-1] = Hunk(file, before, after)
    if not hunks:
        raise PatchError(f"{name}: has no diff")
    return hunks


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])
