"""``job.evaluate()``: sums over a data set, cut by batches over the ranks, in rounds.

In each round every rank computes one batch and all exchange their results, which each of them adds in the order of the
batches. The sums therefore do not depend on the number of ranks. A change of generation costs the batches under way:
the ranks that remain continue with the first batch that has no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, default_collate

from elastrain.api.shape import Divides, Shape
from elastrain.data.fetch import Fetcher, Task, WorkerStart, as_it_is
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order, Slice
from elastrain.data.rng import Kept, Randomness
from elastrain.data.sampling.bounded import length_or_none, most_of, read
from elastrain.data.share import Place
from elastrain.elastic import reduction
from elastrain.elastic.body.between import Between
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.encoding import decode, encode

Terms = dict[str, tuple[torch.Tensor, torch.Tensor | None]]
"""What a batch adds, by name: a value, or a value times its weight, and the weight."""


class Batches:
    """The batches of an evaluation: which samples, and how they are loaded."""

    def __init__(self, loader: Any) -> None:
        """Raises ``TypeError`` or ``ValueError`` for a loader whose batches are not the same on all ranks."""
        if isinstance(loader, ElasticLoader):
            order, collate = loader.order, loader.collate_fn
            if order.length is None:
                raise ValueError("job.evaluate(loader): the data set has no length, so its evaluation has no end")
            if order.steps_per_epoch > (most := most_of(order.length)):
                raise ValueError(
                    f"job.evaluate(loader): its batch_sampler has {order.steps_per_epoch:,} batches, for data of "
                    f"{order.length:,} samples: at most {most:,}"
                )
            self.indices: Sequence[Sequence[int]] = [
                order.batch(order.first_step + step) for step in range(order.steps_per_epoch)
            ]
        else:
            self.indices = _indices(loader)
            order = Order(None, loader.batch_size or 1, shuffle=False)
            collate = loader.collate_fn
        self.samples = sum(map(len, self.indices))
        if not self.samples:
            raise ValueError("job.evaluate(loader): the data set has no samples")
        self._dataset, self._collate, self._options = loader.dataset, collate or default_collate, _options(loader)
        self._randomness = Randomness(order)

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, numbers: Sequence[int]) -> Iterator[Any]:
        """The data of the batches ``numbers``, in this order."""
        newest = torch.zeros(1, dtype=torch.int64)
        tasks = [Task(0, 0, tuple(self.indices[n]), n) for n in numbers]
        loader = DataLoader(
            Fetcher(self._dataset, self._collate, self._randomness, newest),
            sampler=tasks,
            batch_size=None,
            collate_fn=as_it_is,
            generator=torch.Generator(),
            **self._options,
        )
        return (data for _, data in loader)

    def seed(self, number: int) -> None:
        """Seed the generators for ``fn`` on batch ``number``."""
        self._randomness.seed_body(number, Slice((), (), 0.0, 0))


def _indices(loader: Any) -> Sequence[Sequence[int]]:
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"job.evaluate(loader): {type(loader).__name__}: must be a torch.utils.data.DataLoader, or made by "
            "job.dataloader()"
        )
    if loader.batch_sampler is None:
        raise ValueError(
            "job.evaluate(loader): it yields no batches of a map-style data set; give batch_size=, and a stream to "
            "job.dataloader(stream, ...)"
        )
    if not isinstance(loader.sampler, SequentialSampler):
        raise ValueError(
            f"job.evaluate(loader): {type(loader.sampler).__name__}: the ranks share the batches of one order: leave "
            "shuffle=True and sampler= out"
        )
    most = most_of(length_or_none(loader.dataset))
    batches = read(loader.batch_sampler, "job.evaluate(loader)", most=most, size=lambda b: length_or_none(b) or 1)
    return [list(batch) for batch in batches]


def _options(loader: Any) -> dict[str, Any]:
    inner = loader if isinstance(loader, DataLoader) else loader.torch_loader
    start = inner.worker_init_fn
    return {
        "num_workers": inner.num_workers,
        "pin_memory": inner.pin_memory,
        "timeout": inner.timeout,
        "prefetch_factor": inner.prefetch_factor,
        "multiprocessing_context": inner.multiprocessing_context,
        "worker_init_fn": start if isinstance(start, WorkerStart) else WorkerStart(start),
    }


class Evaluation:
    """One call of ``job.evaluate()``."""

    def __init__(
        self,
        batches: Batches,
        function: Callable[[Any], Mapping[str, Any]],
        modules: Iterable[nn.Module],
        *,
        together: bool = False,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``modules``: in ``eval()`` mode while ``function`` runs. ``around``: entered for each batch.

        ``together``: all ranks compute a batch in each round, since a forward needs several of them. A rank for which
        none is left computes the first one of the round again, and a round that a loss interrupts begins again.
        """
        self._batches, self._function, self._modules = batches, function, list(modules)
        self._together, self._around = together, around
        self._sums = Sums()
        self._kept = Kept()

    def run(self, ranks: Between) -> dict[str, Any]:
        """The sums over all batches. ``ranks``: the others of the job. Raises ``Drained``."""
        place: Place | None = None
        mine: Iterator[tuple[int | None, Any]] = iter(())
        shape = (len(self._batches), self._batches.samples)
        while self._sums.next < len(self._batches) and ranks.meets():
            if place != ranks.place:
                place = ranks.place
                mine = self._share(place)
            ranks.computes()
            terms = {} if self._together and ranks.missed else self._compute(mine)
            exchange = ranks.attempt if self._together else ranks.exchange
            if (given := exchange(Kind.EVALUATE, encode((shape, terms)))) is None:
                continue
            rows = [decode(row) for row in given]
            for rank, (other, _) in enumerate(rows):
                if other != rows[0][0]:
                    raise ValueError(
                        "job.evaluate(): rank 0 has {} batches of {} samples, rank {} {} of {}: all ranks must "
                        "evaluate the same data".format(*rows[0][0], rank, *other)
                    )
            ranks.once.under_way = True
            self._sums.take(merged([row for _, row in rows], ranks.place.shape))
        ranks.once.under_way = False
        return self._sums.result() if self._sums.next else self.first()

    def first(self) -> dict[str, Any]:
        """The sums of the first batch, if nothing depends on them."""
        self._sums.take(self._compute(zip([0], self._batches.load([0]), strict=True)))
        return self._sums.result()

    def _share(self, place: Place) -> Iterator[tuple[int | None, Any]]:
        """This rank's batches among those without a result, by number; None: its terms do not count."""
        left = range(self._sums.next, len(self._batches))
        part, parts, _ = place.share
        numbers: list[int | None] = [*left[part::parts]]
        load = [n for n in numbers if n is not None]
        if self._together and len(numbers) < -(-len(left) // parts):
            numbers, load = [*numbers, None], [*load, left[0]]
        return zip(numbers, self._batches.load(load), strict=False)

    def _compute(self, mine: Iterator[tuple[int | None, Any]]) -> dict[int, Terms]:
        """The terms of this rank's next batch, if there is one."""
        with self._evaluating(), self._around():
            for number, data in mine:
                self._batches.seed(number or 0)
                terms = terms_of(self._function(data))
                return {} if number is None else {number: terms}
        return {}

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(module, module.training) for root in self._modules for module in root.modules()]
        with ExitStack() as stack:
            stack.enter_context(self._kept)
            stack.enter_context(torch.no_grad())
            for root in self._modules:
                root.eval()
            try:
                yield
            finally:
                for module, training in modes:
                    module.training = training


def merged(rows: Sequence[Mapping[int, Terms]], shape: Shape) -> dict[int, Terms]:
    """The terms of each batch, by its number. Pure.

    ``rows``: by rank. Of the ranks that have computed a batch together, those count that have its loss; along a
    sequence each has a part of it.
    """
    found: dict[int, Terms] = {}
    for rank, row in enumerate(rows):
        for number, terms in row.items() if shape.has_loss(rank) else ():
            if number not in found or not shape.dividing(Divides.SEQUENCE):
                found[number] = terms
                continue
            sums = Sums()
            sums.take({0: found[number]})
            sums.take({1: terms})
            found[number] = sums.terms
    return found


def terms_of(returned: Any) -> Terms:
    """What a batch adds. Raises ``TypeError`` if ``fn`` returned something else."""
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"job.evaluate(fn): fn(batch) must return a dict of numbers, tensors or pairs (value, weight), not "
            f"{type(returned).__name__}"
        )
    terms: Terms = {}
    for name, value in returned.items():
        what = f"job.evaluate(fn): {name!r}"
        if isinstance(value, tuple):
            if len(value) != 2:
                raise TypeError(f"{what}: a tuple of {len(value)}; must be (value, weight)")
            weight = reduction.plain(value[1], what).double()
            terms[name] = reduction.plain(value[0], what).double() * weight, weight
        else:
            terms[name] = reduction.exact(reduction.plain(value, what)), None
    return terms


class Sums:
    """Adds the terms of batches in the order of their numbers."""

    def __init__(self) -> None:
        self.next = 0
        """The first batch that has not been added."""
        self._waiting: dict[int, Terms] = {}
        self.terms: Terms = {}

    def take(self, terms: Mapping[int, Terms]) -> None:
        """Add the terms of batches, by number, as soon as all before them were added. Raises ``ValueError``."""
        self._waiting.update({number: t for number, t in terms.items() if number >= self.next})
        while self.next in self._waiting:
            for name, (value, weight) in self._waiting.pop(self.next).items():
                self.terms[name] = self._added(name, value, weight)
            self.next += 1

    def result(self) -> dict[str, Any]:
        """By name: the sum, or the mean of values with weights; numbers for scalars, else CPU tensors."""
        values = {name: value if weight is None else value / weight for name, (value, weight) in self.terms.items()}
        return {name: value.item() if value.dim() == 0 else value for name, value in values.items()}

    def _added(
        self, name: str, value: torch.Tensor, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if name not in self.terms:
            return value, weight
        total, weights = self.terms[name]
        if total.shape != value.shape or (weight is None) != (weights is None):
            raise ValueError(
                f"job.evaluate(fn): {name!r}: shape {tuple(value.shape)}{_weighted(weight)} of batch {self.next}, "
                f"{tuple(total.shape)}{_weighted(weights)} before: must be the same for all batches"
            )
        return total + value, None if weight is None or weights is None else weights + weight


def _weighted(weight: torch.Tensor | None) -> str:
    return "" if weight is None else " with a weight"
