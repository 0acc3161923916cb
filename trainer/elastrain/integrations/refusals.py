"""Options of a framework that have no meaning in an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def given(value: Any) -> bool:
    """Whether the option has a value that turns something on."""
    return bool(value)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One option."""

    option: str
    """Its name, as the user writes it."""
    instead: str
    """What to do instead."""
    refused: Callable[[Any], bool] = given
    """Whether this value is refused. An option without a value, or with None, never is."""


def refuse(values: Mapping[str, Any], refusals: Iterable[Refusal]) -> None:
    """Raises ``ValueError`` for the first refused option of ``values``; names it, its value and the way out."""
    for refusal in refusals:
        value = values.get(refusal.option)
        if value is not None and refusal.refused(value):
            raise ValueError(f"{refusal.option}: {word(value)}: not in an elastic job; {refusal.instead}")


def word(value: Any) -> str:
    """The text of an option's value, which may be an enumeration member."""
    return str(getattr(value, "value", value)).lower()
