"""Formats one line of a worker's log for reading. Pure.

A worker's log mixes the agent's JSON objects (:mod:`elastrain.agent.logs`) with the script's output. This module
formats the agent's objects; it leaves all other lines unchanged, JSON included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from elastrain.api.printable import printable, printable_tree

_OURS = "elastrain."
_IN_HEAD = ("event", "level", "logger", "timestamp", "exception")
_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red"}


def readable(text: str) -> Text:
    """``text`` for a terminal: an object of the agent as a dim sentence, a line of the script unchanged."""
    record = _of_the_agent(text)
    if record is None:
        return unchanged(text)
    time = str(record["timestamp"]).partition("T")[2][:8]
    facts = " ".join(f"{name}={_value(value)}" for name, value in record.items() if name not in _IN_HEAD)
    line = Text(f"agent {time} {record['event']}", style=_STYLES.get(record["level"], "dim"))
    if facts:
        line.append(f"  {facts}", style="dim")
    if record.get("exception"):
        line.append(f"\n{record['exception']}", style="red")
    return line


def unchanged(text: str) -> Text:
    """``text`` with its colours. Other sequences, which would act on the terminal, are shown instead."""
    return Text.from_ansi(printable(text, colours=True))


def _of_the_agent(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        record = printable_tree(json.loads(text))
    except (ValueError, RecursionError):
        return None
    ours = all(isinstance(record.get(key), str) for key in ("event", "level", "logger", "timestamp"))
    return record if ours and record["logger"].startswith(_OURS) else None


def _value(value: object) -> str:
    if isinstance(value, str):
        return value if value and " " not in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
