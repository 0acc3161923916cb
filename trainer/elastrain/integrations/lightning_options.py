"""The options of Lightning's Trainer in an elastic job."""

from __future__ import annotations

import inspect

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, Timer, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

from elastrain.data.order import ENDLESS


def total_steps(trainer: Trainer) -> int:
    """Steps of the whole job."""
    epochs = trainer.max_epochs
    bounds = [trainer.max_steps] if trainer.max_steps != -1 else []
    if epochs is not None and epochs != -1:
        bounds.append(epochs * int(trainer.num_training_batches))
    return min(bounds, default=ENDLESS)


def check(trainer: Trainer) -> None:
    """Raises ``ValueError`` naming an option that has no meaning in an elastic job."""
    module = trainer.lightning_module
    own_averages = (StochasticWeightAveraging, WeightAveraging)
    refusals = (
        (trainer.accumulate_grad_batches != 1, "accumulate_grad_batches", "the DataLoader's batch_size is the most that"
         " a rank computes at a time, and the strategy's global_batch_size one optimizer step"),
        (trainer.overfit_batches > 0, "overfit_batches", "give the Trainer a smaller data set"),
        (trainer.reload_dataloaders_every_n_epochs, "reload_dataloaders_every_n_epochs", "a job has one order of data"),
        (any(isinstance(c, Timer) for c in trainer.callbacks), "max_time", "clocks differ; call job.stop()"),
        (any(isinstance(c, own_averages) for c in trainer.callbacks), "WeightAveraging", "job.track(average=...)"),
        (not module.automatic_optimization, "automatic_optimization=False", "use Fabric: the script has the loop"),
        (is_overridden("backward", module), "LightningModule.backward()", "the job computes the gradients"),
        ("dataloader_iter" in inspect.signature(module.training_step).parameters, "training_step(dataloader_iter)",
         "take a batch"),
    )  # fmt: skip
    for refused, name, instead in refusals:
        if refused:
            raise ValueError(f"{name}: not in an elastic job; {instead}")
