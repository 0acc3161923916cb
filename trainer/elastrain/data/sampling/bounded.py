"""Reads what a script gives as an iterable, and which may never end: within a bound, with an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 2**22
"""Values that are read of an iterable, unless the data set is larger: as a list, each takes about 40 bytes."""
PASSES = 8
"""Times that an epoch may have each sample of a larger data set."""


def most_of(samples: int | None) -> int:
    """Indices that an epoch of a data set of ``samples`` may have; None: of an unknown number."""
    return max(MOST, PASSES * (samples or 0))


def read(values: Iterable[T], what: str, *, most: int = MOST, size: Callable[[T], int] = lambda _: 1) -> list[T]:
    """All of ``values``: of those with a length so many at most, and of all at most ``most``.

    ``size``: of a value that counts for more. ``what``: begins the error. Fewer values than the length are taken as
    they are. Raises ``ValueError`` for more of them, and ``TypeError`` for a generator, which can be read only once.
    """
    name, said = type(values).__name__, length_or_none(values)
    if type(values).__module__ in ("builtins", "itertools") and iter(values) is values:
        raise TypeError(f"{what}: a {name} can be read only once: give an object whose __iter__() begins anew")
    if said is not None and said > most:
        raise ValueError(
            f"{what}: len({name}) is {said:,}, and each rank reads it as a whole, at most {most:,}: {_WAY}"
        )
    found, total = list[T](), 0
    for value in values:
        if said is not None and len(found) == said:
            raise ValueError(
                f"{what}: {name} yields more than its len(), which is {said:,}: it must end where its length says"
            )
        total += max(1, size(value))
        if total > most:
            raise ValueError(f"{what}: {name} has yielded {most:,} indices and does not end: {_WAY}")
        found.append(value)
    return found


_WAY = (
    "end it after one epoch, with __len__() for the number; or, for a sampler, define indices(epoch, start, stop) or "
    "batch(epoch, number), of which only a part is read (docs/data.md)"
)


def length_or_none(values: Any) -> int | None:
    """``len(values)``; None if it has none."""
    try:
        return len(values)
    except (TypeError, NotImplementedError, AttributeError):
        return None
    except OverflowError:  # such as 10**30
        return 2**63
