"""The options of Lightning's Trainer in an elastic job."""

from __future__ import annotations

import inspect
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, Timer, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

from elastrain.data.order import ENDLESS
from elastrain.integrations.refusals import Refusal, refuse


def total_steps(trainer: Trainer) -> int:
    """Steps of the whole job."""
    epochs = trainer.max_epochs
    bounds = [trainer.max_steps] if trainer.max_steps != -1 else []
    if epochs is not None and epochs != -1:
        bounds.append(epochs * int(trainer.num_training_batches))
    return min(bounds, default=ENDLESS)


_REFUSALS = (
    Refusal(
        "accumulate_grad_batches",
        "the DataLoader's batch_size is the most that a rank computes at a time, and the strategy's global_batch_size "
        "one optimizer step",
        lambda n: n != 1,
    ),
    Refusal("overfit_batches", "give the Trainer a smaller data set"),
    Refusal("reload_dataloaders_every_n_epochs", "a job has one order of data"),
    Refusal("max_time", "clocks differ; call job.stop()"),
    Refusal("WeightAveraging", "job.track(average=...)"),
    Refusal("automatic_optimization", "use Fabric: the script has the loop", lambda automatic: not automatic),
    Refusal("LightningModule.backward()", "the job computes the gradients"),
    Refusal("training_step(dataloader_iter)", "take a batch"),
)


def check(trainer: Trainer) -> None:
    """Raises ``ValueError`` naming an option that has no meaning in an elastic job."""
    module = trainer.lightning_module
    timers = [c for c in trainer.callbacks if isinstance(c, Timer)]
    averages = [
        type(c).__name__ for c in trainer.callbacks if isinstance(c, StochasticWeightAveraging | WeightAveraging)
    ]
    values = {
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "overfit_batches": trainer.overfit_batches,
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
        "max_time": "a Timer" if timers else None,
        "WeightAveraging": ", ".join(averages),
        "automatic_optimization": module.automatic_optimization,
        "LightningModule.backward()": is_overridden("backward", module),
        "training_step(dataloader_iter)": "dataloader_iter" in inspect.signature(module.training_step).parameters,
    }
    refuse(values, _REFUSALS)


def check_logged(results: Any) -> None:
    """Raises ``ValueError`` naming what training logs as a number of all ranks. ``results``: those of Lightning."""
    found = {
        logged.meta.name: "sync_dist=True" if logged.is_tensor else "a Metric"
        for logged in results.values()
        if logged.meta.sync.should or not logged.is_tensor
    }
    if found:
        named = ", ".join(f"self.log({name!r}, {what})" for name, what in found.items())
        raise ValueError(
            f"{named} in training: each rank would have the number of its own part of the batch; log job.loss, or a "
            "tensor without sync_dist, which is that of rank 0's part; or log it in validation, on all data"
        )
