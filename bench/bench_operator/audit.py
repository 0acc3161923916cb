"""One user's requests, from the API server's audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any


class Audit:
    """The requests of one user. ``mark`` is a position in the log."""

    def __init__(self, log: Path, user: str) -> None:
        self._log = log
        self._user = user

    def mark(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def requests(self, since: int) -> dict[str, int]:
        """Requests that ended after ``since``, by verb and resource. (A watch counts when it ends.)"""
        found = Counter(_words(entry) for entry in self._entries(since))
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def created_pods(self, since: int) -> dict[str, float]:
        """When the API server had created each pod, in seconds since the epoch, by name."""
        return {
            entry["objectRef"]["name"]: datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
            for entry in self._entries(since)
            if _words(entry) == "create pods" and entry["responseStatus"]["code"] == 201
        }

    def _entries(self, since: int) -> Iterator[dict[str, Any]]:
        if not self._log.exists():
            return
        with self._log.open("rb") as lines:
            lines.seek(since)
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # it is being written
                entry = json.loads(line)
                if entry["user"]["username"] == self._user:
                    yield entry


def _words(entry: dict[str, Any]) -> str:
    """As in ``patch elastictrainingjobs/status``."""
    what = entry.get("objectRef") or {}
    resource = "/".join(x for x in (what.get("resource"), what.get("subresource")) if x)
    return f"{entry['verb']} {resource or entry.get('requestURI', '').partition('?')[0]}"
