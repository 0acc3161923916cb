"""Readers of raw API objects that never raise: a field of an unexpected type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.api.printable import printable

Raw = Mapping[str, Any]


def mapping(value: object) -> Raw:
    """An object; anything else is empty."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Raw]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


MOST_TEXT = 16384
"""Most characters of a string: kubelets and controllers write messages of any length."""


def text(value: object) -> str:
    """A string, as it may be shown (:func:`printable`), cut to ``MOST_TEXT``; anything else is empty."""
    return printable(value[:MOST_TEXT]) if isinstance(value, str) else ""


def number(value: object) -> int | None:
    """An integer (``true`` is none)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
