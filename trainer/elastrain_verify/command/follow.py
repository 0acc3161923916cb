"""Follows the records of a run while it goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Seen:
    """What a process has recorded so far."""

    worker: str = ""
    pid: int = 0
    step: int = 0
    """Committed steps."""
    waits: int = -1
    """The position at which it was held last."""
    receives: bool = False
    """Whether it was held before it received state."""
    halts: bool = False
    """Whether it was held between two backwards."""
    ended: bool = False


class Follower:
    """Reads what the records in a folder have gained. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._seen: dict[Path, Seen] = {}

    def look(self) -> list[Seen]:
        """All processes, as they are now."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.setdefault(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] += len(whole)
            seen = self._seen.setdefault(path, Seen())
            for line in whole.splitlines():
                _take(seen, line)
        return list(self._seen.values())


def _take(seen: Seen, line: bytes) -> None:
    # A record of a step is long, and only its beginning matters here.
    head = line[: line.find(b', "entries"')] + b"}" if b', "entries"' in line else line
    found = json.loads(head)
    match found["kind"]:
        case "start":
            seen.worker, seen.pid = found["worker"], found["pid"]
        case "step":
            seen.step = found["step"]
        case "waits":
            seen.waits = found["at"]
        case "receives":
            seen.receives = True
        case "halts":
            seen.halts = True
        case "end":
            seen.ended = True
