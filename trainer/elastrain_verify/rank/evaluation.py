"""``job.evaluate()`` in one process: sums of what a function gives for each batch of a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order, Slice
from elastrain.data.rng import Randomness
from elastrain_verify.rank.data import Part, Samples


def evaluate(models: Sequence[nn.Module], loader: Any, fn: Callable[[Any], Any]) -> dict[str, Any]:
    """As :meth:`elastrain.Job.evaluate`, with ``models`` in eval mode."""
    elastic = isinstance(loader, ElasticLoader)
    order = loader.order if elastic else Order(None, loader.batch_size or 1, shuffle=False)
    batches = map(order.batch, range(order.steps_per_epoch)) if elastic else loader.batch_sampler
    keys = Randomness(order)
    samples = Samples(loader.dataset, loader.collate_fn or default_collate, keys)
    modes = {m: m.training for model in models for m in model.modules()}
    sums: dict[str, Any] = {}
    with keys.kept, torch.no_grad():
        for model in models:
            model.eval()
        for number, indices in enumerate(batches):
            data = samples[Part(number, 0, tuple(indices))]
            keys.seed_body(number, Slice((), (), 0.0, 0))
            for name, given in fn(data).items():
                value, weight = given if isinstance(given, tuple) else (given, None)
                value = torch.as_tensor(value).detach().cpu() * (1 if weight is None else weight)
                value = value.to(torch.float64 if value.is_floating_point() else torch.int64)
                total, weights = sums.get(name, (0, 0))
                sums[name] = total + value, None if weight is None else weights + weight
    for m, training in modes.items():
        m.training = training
    means = {name: value if weight is None else value / weight for name, (value, weight) in sums.items()}
    return {name: value.item() if value.dim() == 0 else value for name, value in means.items()}
