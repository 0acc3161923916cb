"""A state in short: to compare two, and one with itself later."""

from __future__ import annotations

from typing import Any

from elastrain.elastic.state import capture


def fingerprints(tree: Any) -> dict[str, str]:
    """Of each entry that a load compares, by its path: type, shape and digest of a tensor, or the value."""
    entries = capture._entries(tree)
    return {path: capture._text(entries, path) for path in entries}
