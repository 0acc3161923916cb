"""Values as rows of integers, in which form ranks exchange them: the declaration of a class is its format. Pure.

A class is a dataclass or a ``NamedTuple`` of integers, booleans, such classes, and tuples of a fixed number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def to_integers(value: Any) -> list[int]:
    """The integers in ``value``, in the order of its declaration."""
    if isinstance(value, int):
        return [int(value)]
    parts = value if isinstance(value, tuple) else (getattr(value, field.name) for field in fields(value))
    return [integer for part in parts for integer in to_integers(part)]


def from_integers(kind: type[T], row: Iterable[int]) -> T:
    """The value of ``kind`` whose integers are ``row``."""
    value: T = _next(kind, iter(row))
    return value


def _next(kind: Any, row: Iterator[int]) -> Any:
    if kind in (int, bool):
        return kind(next(row))
    if items := get_args(kind):
        return tuple(_next(item, row) for item in items)
    return kind(*(_next(part, row) for part in _parts(kind).values()))


@cache
def _parts(kind: Any) -> dict[str, Any]:
    """The fields of a class, and their types."""
    return get_type_hints(kind)
