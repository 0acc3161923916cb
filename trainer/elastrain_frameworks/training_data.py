"""A ``DataLoader`` that a framework was given, in the order of an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from elastrain.data.loader import ElasticLoader
from elastrain.elastic.job import Job

KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
"""Options of the DataLoader that the job's loader takes over."""


class Epochs:
    """The job's training data in a framework's eyes: each iteration is one epoch of the job."""

    def __init__(
        self,
        loader: ElasticLoader,
        steps: Callable[..., Iterator[Any]],
        *,
        batches: int | None,
        place: Callable[[Any], Any] | None = None,
    ) -> None:
        """``steps(epochs=n)``: as of :meth:`elastrain.Job.steps`. ``batches``: of an epoch, as a script counts them.
        ``place``: moves a batch to the device."""
        self.dataset, self.order, self.randomness = loader.dataset, loader.order, loader.randomness
        self._steps, self._batches, self._place = steps, batches, place
        self._epoch = 0

    def __len__(self) -> int:
        """Raises ``TypeError`` for data without a length."""
        if self._batches is None:
            raise TypeError("the data set has no length")
        return self._batches

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is ``epoch``, from 0. For ``for epoch in job.epochs(loader, epochs)``."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        for batch in self._steps(epochs=self._epoch):  # no variable: it ends at once if the loop is left
            yield batch if self._place is None else self._place(batch)


def in_order_of(job: Job, source: Any, what: str, *, global_batch_size: int, seed: int) -> ElasticLoader:
    """The samples of ``source`` in global batches, of which a rank computes at most ``source.batch_size`` at a time.

    A shuffled ``source`` is shuffled by (seed, epoch); another sampler is taken over as of
    :meth:`elastrain.Job.dataloader`. ``global_batch_size``: samples of one optimizer step over all ranks. ``what``
    begins the message. Raises ``ValueError`` for batches of a sampler of their own, and for a sampler that cuts the
    data by rank.
    """
    plain = isinstance(source, DataLoader) and type(source.batch_sampler) is BatchSampler
    if not plain or source.batch_size is None:
        raise ValueError(
            f"{what}: must be a torch DataLoader with a batch_size and no batch_sampler; make the loader of other "
            "batches by job.dataloader(..., batch_sampler=...)"
        )
    options: dict[str, Any] = {name: getattr(source, name) for name in KEPT}
    if source.num_workers:
        options["prefetch_factor"] = source.prefetch_factor
    size = source.batch_size
    return job.dataloader(
        source.dataset,
        global_batch_size=global_batch_size,
        micro_batch_size=size if size < global_batch_size else None,
        drop_last=source.drop_last,
        seed=seed,
        **_order(source),
        **options,
    )


def _order(source: DataLoader[Any]) -> dict[str, Any]:
    """The arguments of :meth:`elastrain.Job.dataloader` for the order of ``source``."""
    if isinstance(source.dataset, IterableDataset):
        return {}
    if type(source.sampler) is SequentialSampler:
        return {"shuffle": False}
    if _is_plain_shuffle(source.sampler):
        return {"shuffle": True}
    return {"sampler": source.sampler}


def _is_plain_shuffle(sampler: Any) -> bool:
    """Whether every sample comes once an epoch: what ``shuffle=True`` makes."""
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
