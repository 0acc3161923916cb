"""The options of ``job.dataloader()`` that determine the order of the data."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler as TorchBatchSampler

from elastrain.data.order import Order
from elastrain.data.sampling.bounded import most_of
from elastrain.data.sampling.samplers import OwnShuffle
from elastrain.data.sampling.torch_samplers import batches_by_number, by_position
from elastrain.data.stream import ElasticIterable, length_of


def order_of(
    dataset: Any,
    *,
    global_batch_size: int | None,
    seed: int,
    shuffle: bool | None,
    drop_last: bool,
    sampler: Any = None,
    batch_sampler: Any = None,
    micro_batch_size: int | None = None,
    micro_batches: int | None = None,
    even: bool = False,
    accept_change: bool = False,
    epoch: int | None = None,
) -> Order:
    """The order of ``dataset`` by these arguments of ``job.dataloader()``, of which it documents the meaning.

    ``even``, ``accept_change``: as of :class:`Order`. ``epoch``: that begins, for which data set and sampler are read
    again; None: no loop has begun. Raises ``ValueError`` or ``TypeError`` naming the argument.
    """
    length, stream = length_of(dataset), isinstance(dataset, ElasticIterable)
    if batch_sampler is not None:
        given = {"global_batch_size": global_batch_size, "sampler": sampler, "shuffle": shuffle}
        names = [name for name, value in given.items() if value is not None] + ["drop_last"] * drop_last
        if names:
            raise ValueError(f"job.dataloader({names[0]}=…): batch_sampler already says it; leave {names[0]} out")
    elif global_batch_size is None:
        raise ValueError("job.dataloader(): give global_batch_size=…, the samples of one optimizer step over all ranks")
    _check_order(stream, shuffle, sampler, batch_sampler)
    if type(batch_sampler) is TorchBatchSampler:
        sampler, global_batch_size = batch_sampler.sampler, batch_sampler.batch_size
        drop_last, batch_sampler = batch_sampler.drop_last, None
    options: dict[str, Any] = {"seed": seed, "micro_batch_size": micro_batch_size, "micro_batches": micro_batches}
    options |= {"even": even, "accept_change": accept_change}
    if batch_sampler is not None:
        batches = batches_by_number(batch_sampler, seed, most_of(length), epoch)
        return Order(batches.samples, batches.batch_size, shuffle=False, batch_sampler=batches, **options)
    assert global_batch_size is not None
    options["drop_last"] = drop_last
    if sampler is None and shuffle is not False and isinstance(dataset, OwnShuffle):
        sampler = dataset.shuffled(seed=seed, global_batch_size=global_batch_size)
    if sampler is not None:
        chosen = by_position(sampler, seed, most_of(length), epoch)
        return Order(len(chosen), global_batch_size, shuffle=False, sampler=chosen, **options)
    return Order(length, global_batch_size, shuffle=not stream if shuffle is None else shuffle, **options)


def _check_order(stream: bool, shuffle: bool | None, sampler: Any, batch_sampler: Any) -> None:
    if sampler is not None and shuffle is not None:
        raise ValueError(f"job.dataloader(shuffle={shuffle}): the sampler determines the order; leave shuffle out")
    if stream and (sampler is not None or batch_sampler is not None):
        raise ValueError("job.dataloader(sampler=…): a stream keeps its own order; samplers are for map-style data")
    if stream and shuffle:
        raise ValueError("job.dataloader(shuffle=True): a stream keeps its own order; shuffle inside of it")
