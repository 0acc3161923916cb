"""Which of the tracebacks in the output of a process is the error that ended it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_START = "Traceback (most recent call last)"
_NOISE = re.compile(r"^Exception ignored (in|on|while)\b")
"""The line above the traceback of a destructor or a callback, which ends no process."""
_LAUNCHER = re.compile(r"^(subprocess\.)?CalledProcessError: |^torch\.distributed\.elastic\.\S+\.ChildFailedError")
"""A launcher's error that one of its processes has failed; the cause stands above it, if it was logged."""
_RANK = re.compile(r"^\[rank\d+\]:\s?")


def lines_of(log: str) -> list[str]:
    """The lines of ``log`` without torch's mark of the rank."""
    return [_RANK.sub("", line) for line in log.splitlines()]


def start_of_error(lines: Sequence[str]) -> int:
    """Index of the first line of that traceback; -1 if there is none.

    The last traceback counts, but none of an ignored exception, and a launcher's only if there is no other.
    """
    starts = list(_starts(lines))
    causes = [start for start in starts if not _LAUNCHER.match(lines[end_of_error(lines, start)])]
    return max(causes or starts, default=-1)


def end_of_error(lines: Sequence[str], start: int) -> int:
    """Index of the line with the exception of the traceback at ``start``; the last line if that was cut off."""
    found = (i for i in range(start + 1, len(lines)) if lines[i] and not lines[i][0].isspace())
    return next(found, len(lines) - 1)


def _starts(lines: Sequence[str]) -> Iterator[int]:
    above = ""
    for number, line in enumerate(lines):
        if line.startswith(_START) and not _NOISE.match(above):
            yield number
        above = line
