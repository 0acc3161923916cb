"""The data of the reference: torch's own DataLoader, made anew for each loop and epoch, in the job's order of samples.

It shares no loading with the job. A sample, and the collation of a micro-batch, draw under the job's keys of their
positions; what the script changes in the data set acts as it does in plain torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from elastrain.data.draws import Draws
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Slice
from elastrain.data.rng import Randomness
from elastrain.data.share import Share


class Part(NamedTuple):
    """A micro-batch to load."""

    position: int
    """Of its first sample in the sequence of steps."""
    epoch: int
    indices: tuple[int, ...]


class Samples(Dataset[Any]):
    """A data set of micro-batches."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], keys: Randomness | None) -> None:
        self._dataset, self._collate, self._keys = dataset, collate, keys
        self._stream: Iterator[Any] = iter(())
        self._next = -1, -1

    def __getitem__(self, part: Part) -> Any:
        if self._keys is None:
            return self._collate(self._load(part, lambda offset: None))
        keys = self._keys
        with keys.kept:
            samples = self._load(part, lambda offset: keys.seed_sample(part.position + offset))
            keys.seed_collate(part.position)
            return self._collate(samples)

    def _load(self, part: Part, seed: Callable[[int], None]) -> list[Any]:
        if hasattr(self._dataset, "iter_from"):
            return list(self._read(part, seed))
        if hasattr(self._dataset, "__getitems__"):
            seed(0)
            before, samples = _drawn(), self._dataset.__getitems__(list(part.indices))
            if self._keys is None or _drawn() == before:
                return list(samples)
        samples = []
        for offset, index in enumerate(part.indices):
            seed(offset)
            samples.append(self._dataset[index])
        return samples

    def _read(self, part: Part, seed: Callable[[int], None]) -> Iterator[Any]:
        """The samples of a stream."""
        if self._next != (part.epoch, part.indices[0]):
            self._stream = iter(self._dataset.iter_from(part.epoch, part.indices[0]))
        for offset in range(len(part.indices)):
            seed(offset)
            yield from islice(self._stream, 1)
        self._next = part.epoch, part.indices[-1] + 1


def _drawn() -> Sequence[Any]:
    """States of the default generators."""
    numpy = np.random.get_state(legacy=False)
    return random.getstate(), torch.default_generator.get_state().numpy().tobytes(), repr(numpy)


class Batches:
    """The data of one loop. ``parts``: (step, number of parts): from this step on, of each global batch."""

    def __init__(self, loader: ElasticLoader, parts: Sequence[tuple[int, int]]) -> None:
        self.order = loader.order
        self._loader, self._parts = loader, parts
        self._batches: Iterator[Any] | None = None

    def begin(self, step: int) -> list[Slice]:
        """The micro-batches of ``step``, which iterations then load."""
        if self._batches is None or self.order.where(step)[1] == 0:
            self._loader.begin(step, Share(0, 1))
            self.order = self._loader.order
            self._batches = iter(self._torch_loader(self._from(step)))
        return self._cut(step)

    def __next__(self) -> Any:
        assert self._batches is not None
        return next(self._batches)

    def _cut(self, step: int) -> list[Slice]:
        parts = max([(0, 1), *(p for p in self._parts if p[0] <= step)])[1]
        return [cut for part in range(parts) for cut in self.order.micro_slices(step, part, parts)]

    def _from(self, step: int) -> Iterator[Part]:
        """What is left of the epoch of ``step``."""
        size = self.order.global_batch_size
        for number in range(step, step + self.order.left(step)):
            for cut in self._cut(number):
                yield Part(number * size + cut.start, cut.epoch, cut.fetch)

    def _torch_loader(self, parts: Iterator[Part]) -> DataLoader[Any]:
        """As the script's arguments say."""
        loader, keys = self._loader, self._loader.randomness
        names = ("num_workers", "pin_memory", "timeout", "prefetch_factor", "multiprocessing_context", "worker_init_fn")
        options: dict[str, Any] = {name: getattr(loader.torch_loader, name) for name in names}
        samples, generator = (
            Samples(loader.dataset, loader.collate_fn, keys),
            None if keys is None else torch.Generator(),
        )
        return DataLoader(samples, sampler=parts, batch_size=None, collate_fn=_as_it_is, generator=generator, **options)


class Watched(Draws):
    """Also notes whether code drew numbers of samples."""

    drew = False

    def _seed_samples(self) -> None:
        super()._seed_samples()
        self._begun = torch.default_generator.get_state()

    def _seed_update(self) -> None:
        if self._part is not None and not self._updates:
            self.drew |= not torch.equal(self._begun, torch.default_generator.get_state())
        super()._seed_update()


def _as_it_is(batch: Any) -> Any:
    return batch
