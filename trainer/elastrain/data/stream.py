"""Data that comes in a sequence: what elastrain asks of it, and a way out for data that cannot do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ElasticIterable(Protocol):
    """A stream that is a function of the position: the whole contract of iterable data sets.

    ``iter_from(epoch, position)`` yields the samples ``position``, ``position + 1``, … of ``epoch``, and which sample
    is at a position depends on nothing but (epoch, position): not on the process, the rank, the time, or what was read
    before. A stream with ``__len__`` has epochs of that many samples; one without (or whose ``__len__`` raises
    ``TypeError``) is endless and stays in epoch 0.

    Every rank reads from its own copy and keeps its part of each global batch; what lies between two parts it reads and
    throws away. With the attribute ``seeks = True`` it calls ``iter_from`` for each part instead, which pays where
    getting to a position is cheap (a file of fixed-size records, a generator of numbers).
    """

    def iter_from(self, epoch: int, position: int) -> Iterator[Any]: ...


class Replayed:
    """A stream from anything that can be iterated from its beginning: positions are reached by reading up to them.

    ``begin(epoch)`` starts the iteration of an epoch, always with the same samples in the same order. After a rescale
    the samples of the epoch so far are read again and thrown away: correct for every deterministic iterable, and as
    slow as reading them is.
    """

    def __init__(self, begin: Callable[[int], Iterable[Any]], length: int | None = None) -> None:
        """``length``: samples of an epoch; None if it does not end."""
        self._begin, self._length = begin, length

    def iter_from(self, epoch: int, position: int) -> Iterator[Any]:
        return islice(iter(self._begin(epoch)), position, None)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("an endless stream has no length")
        return self._length


def length_of(dataset: Any) -> int | None:
    """Samples of an epoch; None for an endless stream.

    Raises ``TypeError`` for a data set that is neither map-style nor an :class:`ElasticIterable`.
    """
    try:
        length: int | None = len(dataset)
    except TypeError:
        length = None
    if isinstance(dataset, ElasticIterable) or (length is not None and hasattr(dataset, "__getitem__")):
        return length
    raise TypeError(
        f"job.dataloader(dataset): {type(dataset).__name__} has neither __getitem__ and __len__ nor "
        "iter_from(epoch, position). A plain iterable cannot be cut anew for another number of workers: nothing says "
        "which sample is at which position. Give it iter_from (elastrain.data.ElasticIterable says what it promises), "
        "or, if it always yields the same samples in the same order, pass "
        "elastrain.data.Replayed(lambda epoch: dataset, length=…)"
    )


class StreamEnded(RuntimeError):
    """A stream has fewer samples than its length says."""


class StreamReader:
    """Reads runs of positions from an :class:`ElasticIterable`, forwards as long as it can."""

    def __init__(self, stream: ElasticIterable) -> None:
        self._stream = stream
        self._seeks = bool(getattr(stream, "seeks", False))
        self._iterator: Iterator[Any] | None = None
        self._epoch, self._at = 0, 0

    def read(self, epoch: int, positions: tuple[int, ...], before: Callable[[int], bool]) -> list[Any] | None:
        """Samples at ``positions``, which are consecutive; None as soon as ``before(position)``, asked before each
        sample is drawn, is false. Raises :class:`StreamEnded`.
        """
        start = positions[0]
        gap = start - self._at
        if self._iterator is None or epoch != self._epoch or gap < 0 or (gap and self._seeks):
            self._iterator = iter(self._stream.iter_from(epoch, start))
            self._epoch, self._at = epoch, start
        samples = []
        while self._at <= positions[-1]:
            if not before(self._at):
                return None
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._iterator = None
                raise StreamEnded(
                    f"{type(self._stream).__name__}: epoch {epoch} ends before position {self._at}; "
                    "its length must be the number of samples that it yields"
                ) from None
            if self._at >= start:
                samples.append(sample)
            self._at += 1
        return samples
