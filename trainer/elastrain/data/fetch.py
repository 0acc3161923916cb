"""Loads a batch, in the training process or in a worker process: the data set as torch's ``DataLoader`` sees it."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from elastrain.data.rng import Kept, Probe, Randomness
from elastrain.data.stream import ElasticIterable, StreamReader

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One micro-batch to load."""

    ticket: int
    """Grows with each seek of the loader: a task with an older one than the newest is not needed any more."""
    epoch: int
    indices: tuple[int, ...]
    position: int
    """Of its first sample in the whole sequence of steps."""


class Fetcher(Dataset[Any]):
    """Turns a :class:`Task` into ``(ticket, batch)``; the batch is None if the task had become stale.

    Samples are loaded, and collated, under keys of their own (:mod:`elastrain.data.rng`) where the data set or the
    collate function draws random numbers. To spare those that do not, the first batches are loaded without keys; one
    that turns out to have drawn something is loaded again, and from then on every sample has its key, and every batch.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        randomness: Randomness | None,
        newest: torch.Tensor,
    ) -> None:
        """``newest``: the newest ticket, one int64, shared with the worker processes. ``randomness``: None leaves the
        generators alone.
        """
        self._dataset = dataset
        self._stream = StreamReader(dataset) if isinstance(dataset, ElasticIterable) else None
        self._collate = collate
        self._randomness = randomness
        self._newest = newest
        self._draws = False
        self._kept_in_worker = Kept()  # what the training process keeps may be in use as a worker is forked
        self._probe = Probe()

    def __getitem__(self, task: Task) -> tuple[int, Any]:
        return task.ticket, self._batch(task)

    def _batch(self, task: Task) -> Any:
        randomness, in_worker = self._randomness, get_worker_info() is not None
        newest = self._newest.numpy()  # shares its memory, and is ten times as quick to read

        def still_newest(_index: int) -> bool:
            return bool(newest[0] == task.ticket)

        needed = still_newest if in_worker else _always  # nobody seeks while the training process loads
        if randomness is None:
            return self._collated(self._load(task, needed))
        with self._kept_in_worker if in_worker else randomness.kept:
            if not self._draws:
                with self._probe as probe:
                    batch = self._collated(self._load(task, needed))
                    if batch is None or not probe.drawn():
                        return batch
                self._draws = True

            def seeded(index: int) -> bool:
                randomness.seed_sample(task.epoch, index)
                return needed(index)

            samples = self._load(task, seeded, one_by_one=True)
            randomness.seed_collate(task.position)
            return self._collated(samples)

    def _collated(self, samples: list[Any] | None) -> Any:
        return None if samples is None else self._collate(samples)

    def _load(self, task: Task, before: Callable[[int], bool], *, one_by_one: bool = False) -> list[Any] | None:
        if self._stream is not None:
            return self._stream.read(task.epoch, task.indices, before)
        if not one_by_one and hasattr(self._dataset, "__getitems__"):
            return list(self._dataset.__getitems__(list(task.indices))) if before(task.indices[0]) else None
        if before is _always:
            return [self._dataset[index] for index in task.indices]
        samples = []
        for index in task.indices:
            if not before(index):
                return None
            samples.append(self._dataset[index])
        return samples


def _always(_index: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """Runs first in a worker process."""

    user: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        # A killed rank's workers must not outlive it: they hold copies of its connections, and its peers would take it
        # for alive. (torch's own watchdog looks every 5 s.)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if self.user is not None:
            self.user(worker)


def as_it_is(batch: Any) -> Any:
    """What torch's ``DataLoader`` calls as collate function: the fetcher has collated already."""
    return batch
