"""The watching half of an API server that a test plays to a reflector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any


class ScriptedWatch:
    """Plays the events of one script for each watch; a script may end with an error."""

    def __init__(self, scripts: Sequence[Sequence[dict[str, Any] | Exception]]) -> None:
        self.scripts = list(scripts)
        self.watched_from: list[str] = []
        self.at_rest = asyncio.Event()
        """Set when all scripts have been played and the watch waits for more."""

    async def changes(
        self, _path: str, _what: str, _query: dict[str, str], version: str
    ) -> AsyncIterator[dict[str, Any]]:
        self.watched_from.append(version)
        if not self.scripts:
            self.at_rest.set()
            await asyncio.Event().wait()
        for step in self.scripts.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step
