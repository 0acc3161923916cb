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
    """Number of the loader's position. A task with an older ticket than the newest is no longer needed."""
    epoch: int
    indices: tuple[int, ...]
    position: int
    """Position of its first sample in the whole sequence of steps."""


class Fetcher(Dataset[Any]):
    """Turns a :class:`Task` into ``(ticket, batch)``; the batch is None if the task had become stale.

    If the data set draws random numbers, each sample is loaded under its own key (:mod:`elastrain.data.rng`); if the
    collate function does, each batch is collated under its own key. Batches are made without keys until the first draw.
    The batch with that draw is made again, and from then on the part that drew gets a key each time.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        randomness: Randomness | None,
        newest: torch.Tensor,
    ) -> None:
        """``newest``: the newest ticket, int64 of shape (1,), shared with the worker processes.

        ``randomness``: None leaves the generators alone.
        """
        self._dataset = dataset
        self._stream = StreamReader(dataset) if isinstance(dataset, ElasticIterable) else None
        self._collate = collate
        self._randomness = randomness
        self._newest = newest
        self._samples_draw = self._collate_draws = False
        self._kept_in_worker = Kept()  # the training process's may be in use when a worker is forked
        self._probe = Probe()

    def __getitem__(self, task: Task) -> tuple[int, Any]:
        return task.ticket, self._batch(task)

    def _batch(self, task: Task) -> Any:
        in_worker = get_worker_info() is not None
        newest = self._newest.numpy()  # the same memory, ten times as fast to read

        def still_newest(_offset: int) -> bool:
            return bool(newest[0] == task.ticket)

        needed = still_newest if in_worker else _always  # the position does not move while the training process loads
        if self._randomness is None:
            samples = self._load(task, needed)
            return None if samples is None else self._collate(samples)
        with self._kept_in_worker if in_worker else self._randomness.kept:
            return self._keyed(task, needed, self._randomness)

    def _keyed(self, task: Task, needed: Callable[[int], bool], randomness: Randomness) -> Any:
        def seeded(offset: int) -> bool:
            randomness.seed_sample(task.position + offset)
            return needed(offset)

        if not self._samples_draw:
            with self._probe as probe:
                samples = self._load(task, needed)
                self._samples_draw = probe.drawn()
                if not self._samples_draw and samples is not None and not self._collate_draws:
                    batch = self._collate(samples)
                    if not probe.drawn():
                        return batch
                    self._collate_draws, self._probe = True, Probe()
                    samples = self._load(task, needed)  # a collate function may take its samples apart
        if self._samples_draw:
            samples = self._load(task, seeded, one_by_one=True)
        randomness.seed_collate(task.position)
        return None if samples is None else self._collate(samples)

    def _load(self, task: Task, before: Callable[[int], bool], *, one_by_one: bool = False) -> list[Any] | None:
        """The samples; None as soon as ``before(offset)``, called before each with its place in the task, is false."""
        if self._stream is not None:
            return self._stream.read(task.epoch, task.indices, before)
        if not one_by_one and hasattr(self._dataset, "__getitems__"):
            return list(self._dataset.__getitems__(list(task.indices))) if before(0) else None
        if before is _always:
            return [self._dataset[index] for index in task.indices]
        samples = []
        for offset, index in enumerate(task.indices):
            if not before(offset):
                return None
            samples.append(self._dataset[index])
        return samples


def _always(_offset: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The first call in a worker process."""

    user: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        # A killed rank's workers must not outlive it: they hold copies of its connections, so that its peers would not
        # see them close. (torch's own watchdog polls every 5 s.)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if self.user is not None:
            self.user(worker)


def as_it_is(batch: Any) -> Any:
    """The collate function of torch's ``DataLoader``: the fetcher has collated already."""
    return batch
