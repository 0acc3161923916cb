"""What a conversion gives: the new text, each change in a line, and the lines that need a person."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? .* @@$")


@dataclass(frozen=True, order=True)
class Change:
    """Something that the conversion changes. ``line``: of the original, from 1."""

    line: int
    what: str


@dataclass(frozen=True, order=True)
class Note:
    """A line that needs a person. ``line``: of the original, from 1; ``way``: the way out."""

    line: int
    why: str
    way: str


@dataclass(frozen=True)
class Conversion:
    """``before`` and ``after``: the text of the script. They are equal if nothing was changed."""

    before: str
    after: str
    changes: tuple[Change, ...]
    notes: tuple[Note, ...]

    def diff(self, path: str) -> str:
        """A unified diff that ``patch`` and ``git apply`` take. Each hunk's heading says what it does."""
        old, new = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        lines = difflib.unified_diff(old, new, path, path, n=1)
        return "".join(self._explained(line) for line in lines)

    def _explained(self, line: str) -> str:
        if not line.endswith("\n"):
            return f"{line}\n\\ No newline at end of file\n"
        found = HUNK.match(line.rstrip("\n"))
        if not found:
            return line
        first, count = int(found[1]), int(found[2] or 1)
        here = dict.fromkeys(change.what for change in self.changes if first <= change.line < first + max(count, 1))
        return f"{line.rstrip()} {'; '.join(here)}\n" if here else line
