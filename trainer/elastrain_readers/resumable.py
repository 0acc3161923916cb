"""Streams from iterables that can save and load their state, as torchdata's ``StatefulDataLoader`` and Hugging Face's
``IterableDataset`` expect of a data set."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


class Resumable:
    """A stream from an iterable with ``state_dict()`` and ``load_state_dict()``: an :class:`ElasticIterable`.

    ``begin(epoch)`` makes the iterable of an epoch, always with the same samples in the same order. Its state is kept
    every ``every`` samples. A rescale loads the last state before its position, and reads and drops at most the samples
    between. Of old positions fewer and fewer states are kept, ``keep`` in all.

    Each process that reads keeps its own states, in memory: a new rank or worker process reads its first epoch from the
    beginning. With a ``folder`` that all ranks share (on the volume of the checkpoints), states are files in it, and a
    new process or a job that is resumed begins at one of them.
    """

    def __init__(
        self,
        begin: Callable[[int], Any],
        length: int | None = None,
        *,
        every: int = 1000,
        keep: int = 32,
        folder: str | Path | None = None,
    ) -> None:
        """``length``: samples of an epoch; None for an endless stream. Raises ``ValueError`` naming the argument."""
        if every < 1 or keep < 2:
            raise ValueError(f"every, keep: {every}, {keep}: must be at least 1 and 2")
        self._begin, self._length, self._every = begin, length, every
        self._states = _Files(Path(folder), keep) if folder is not None else _Memory(keep)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("an endless stream has no length")
        return self._length

    def iter_from(self, epoch: int, position: int) -> Iterator[Any]:
        """As of :class:`ElasticIterable`.

        Raises ``TypeError`` if the iterable has no state, ``ValueError`` naming a file that cannot be read.
        """
        iterable = self._begin(epoch)
        if not (hasattr(iterable, "state_dict") and hasattr(iterable, "load_state_dict")):
            raise TypeError(
                f"Resumable: {type(iterable).__name__} has no state_dict() and load_state_dict(); "
                "elastrain.data.Replayed reads such an iterable from its beginning"
            )
        at = 0
        for kept in sorted((p for e, p in self._states.places() if e == epoch and p <= position), reverse=True):
            with suppress(FileNotFoundError):  # another rank has just deleted it
                iterable.load_state_dict(self._states.load((epoch, kept)))
                at = kept
                break
        for sample in iterable:
            at += 1
            if at % self._every == 0 and (epoch, at) not in self._states.places():
                self._states.save((epoch, at), iterable.state_dict())
            if at > position:
                yield sample


Place = tuple[int, int]
"""Epoch, and number of samples that were read before the state was taken."""


def sparse(places: list[Place], keep: int) -> list[Place]:
    """Those of ``places`` that go when there are more than ``keep``: every second one, never the newest. Pure."""
    return sorted(places)[-2::-2] if len(places) > keep else []


class _Memory:
    """States in memory."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._states: dict[Place, Any] = {}

    def places(self) -> list[Place]:
        return [*self._states]

    def load(self, place: Place) -> Any:
        return copy.deepcopy(self._states[place])

    def save(self, place: Place, state: Any) -> None:
        self._states[place] = copy.deepcopy(state)
        for old in sparse(self.places(), self._keep):
            del self._states[old]


class _Files:
    """States as files ``state-EPOCH-POSITION.pt`` that all ranks share: any of them writes, any of them deletes."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)

    def places(self) -> list[Place]:
        found = (re.fullmatch(r"state-(\d+)-(\d+)\.pt", name) for name in os.listdir(self._folder))  # noqa: PTH208
        return [(int(match[1]), int(match[2])) for match in found if match]

    def load(self, place: Place) -> Any:
        import torch

        file = self._file(place)
        try:
            return torch.load(file, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as e:
            raise ValueError(f"{file}: not a state of a stream: {e!r:.200}; delete it to begin further back") from e

    def save(self, place: Place, state: Any) -> None:
        import torch

        file = self._file(place)
        partial = file.with_suffix(f".{os.uname().nodename}.{os.getpid()}")
        torch.save(state, partial)
        partial.replace(file)
        for old in sparse(self.places(), self._keep):
            self._file(old).unlink(missing_ok=True)

    def _file(self, place: Place) -> Path:
        return self._folder / f"state-{place[0]}-{place[1]}.pt"
