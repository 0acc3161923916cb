"""Data that comes in a sequence: its contract with elastrain, and an adapter for data that cannot fulfil it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ElasticIterable(Protocol):
    """A stream that is a function of the position: the whole contract of iterable data sets.

    ``iter_from(epoch, position)`` yields the samples ``position``, ``position + 1``, … of ``epoch``. The sample at a
    position depends only on (epoch, position): not on the process, the rank, the time, or earlier reads. A stream with
    ``__len__`` has epochs of that many samples. One without (or whose ``__len__`` raises ``TypeError``) is endless and
    stays in epoch 0.

    Every rank reads from its own copy and keeps its part of each global batch; it reads and drops the samples between
    two parts. With the attribute ``seeks = True``, ``iter_from`` is called for each part instead, which is faster if
    reaching a position is cheap (a file of fixed-size records, a generator of numbers).
    """

    def iter_from(self, epoch: int, position: int) -> Iterator[Any]:
        """The samples of ``epoch`` from ``position`` on; both from 0."""


class Replayed:
    """A stream from an iterable that can only be read from its beginning.

    ``begin(epoch)`` starts the iteration of an epoch, always with the same samples in the same order. After a rescale
    the earlier samples of the epoch are read again and dropped: correct for every deterministic iterable, and as slow
    as reading them.
    """

    def __init__(self, begin: Callable[[int], Iterable[Any]], length: int | None = None) -> None:
        """``length``: samples of an epoch; None for an endless stream."""
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
        "iter_from(epoch, position). A plain iterable cannot be cut for another number of workers: its samples have no "
        "known positions. Implement iter_from (see elastrain.data.ElasticIterable), or, if it always yields the same "
        "samples in the same order, pass "
        "elastrain.data.Replayed(lambda epoch: dataset, length=…)"
    )


class StreamEnded(RuntimeError):
    """A stream has fewer samples than its length."""


class StreamReader:
    """Reads runs of positions from an :class:`ElasticIterable`, forwards if possible."""

    def __init__(self, stream: ElasticIterable) -> None:
        self._stream = stream
        self._seeks = bool(getattr(stream, "seeks", False))
        self._iterator: Iterator[Any] | None = None
        self._epoch, self._at = 0, 0

    def read(self, epoch: int, positions: tuple[int, ...], before: Callable[[int], bool]) -> list[Any] | None:
        """The samples at ``positions``, which are consecutive.

        Calls ``before(offset)`` before each sample that is read, with its distance from the first of them (negative for
        one that is skipped), and returns None as soon as it is false. Raises :class:`StreamEnded`.
        """
        start = positions[0]
        gap = start - self._at
        if self._iterator is None or epoch != self._epoch or gap < 0 or (gap and self._seeks):
            self._iterator = iter(self._stream.iter_from(epoch, start))
            self._epoch, self._at = epoch, start
        samples = []
        while self._at <= positions[-1]:
            if not before(self._at - start):
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
