"""The options of Lightning's Trainer in an elastic job."""

from __future__ import annotations

import inspect

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.utilities.model_helpers import is_overridden

from elastrain.data.order import ENDLESS
from elastrain_frameworks.refusals import Refusal, refuse


def total_steps(trainer: Trainer) -> int:
    """Steps of the whole job."""
    epochs = trainer.max_epochs
    bounds = [trainer.max_steps] if trainer.max_steps != -1 else []
    if epochs is not None and epochs != -1:
        bounds.append(epochs * int(trainer.num_training_batches))
    return min(bounds, default=ENDLESS)


_ONE_RANK = "each rank would have its own part, or its own clock"
_CALLBACKS = {
    "BatchSizeFinder": "choose the sizes",
    "BaseFinetuning": "job.at(step, ...) changes what trains",
    "GradientAccumulationScheduler": "global_batch_size is one optimizer step",
    "LearningRateFinder": "choose the rate",
    "ModelPruning": "prune after training",
    "SaveConfigCallback": "LightningCLI(save_config_callback=None)",
    "SpikeDetection": _ONE_RANK,
    "StochasticWeightAveraging": "job.track(average=...)",
    "ThroughputMonitor": _ONE_RANK,
    "Timer": "call job.stop()",
    "WeightAveraging": "job.track(average=...)",
}
"""Lightning's callbacks that are refused, with the ways out."""
_REFUSALS = (
    Refusal(
        "accumulate_grad_batches",
        "the DataLoader's batch_size is the most that a rank computes at a time, and the strategy's global_batch_size "
        "one optimizer step",
        lambda n: n != 1,
    ),
    Refusal("overfit_batches", "give the Trainer a smaller data set"),
    Refusal(
        "limit_train_batches",
        "give the Trainer a smaller data set, or max_steps",
        lambda part: part != 1.0 or type(part) is int,
    ),
    Refusal("sync_batchnorm", "nn.SyncBatchNorm.convert_sync_batchnorm(module)"),
    Refusal("reload_dataloaders_every_n_epochs", "a job has one order of data"),
    Refusal("max_time", "clocks differ; call job.stop()"),
    Refusal("val_check_interval", "clocks differ; give a number of batches"),
    Refusal("ModelCheckpoint(train_time_interval)", "clocks differ; every_n_train_steps"),
    Refusal("ModelCheckpoint(save_last)", "save_last=True", lambda value: value == "link"),
    Refusal("logger", "give it the id of a run, which each new rank 0 goes on with"),
    Refusal("automatic_optimization", "use Fabric: the script has the loop", lambda automatic: not automatic),
    Refusal("LightningModule.backward()", "the job computes the gradients"),
    Refusal("training_step(dataloader_iter)", "take a batch"),
    *(Refusal(name, instead) for name, instead in _CALLBACKS.items()),
)


def check(trainer: Trainer) -> None:
    """Raises ``ValueError`` naming all options, callbacks and loggers that have no meaning in an elastic job."""
    module = trainer.lightning_module
    checkpoints = [vars(c) for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
    values = {
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "overfit_batches": trainer.overfit_batches,
        "limit_train_batches": None if trainer.fast_dev_run else trainer.limit_train_batches,
        "sync_batchnorm": trainer._accelerator_connector._layer_sync is not None,
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
        "max_time": any(isinstance(c, Timer) for c in trainer.callbacks),
        "val_check_interval": getattr(trainer, "_val_check_time_interval", None),
        "ModelCheckpoint(train_time_interval)": next(
            filter(None, (c["_train_time_interval"] for c in checkpoints)), None
        ),
        "ModelCheckpoint(save_last)": "link" if any(c["save_last"] == "link" for c in checkpoints) else None,
        "logger": ", ".join(type(one).__name__ for one in trainer.loggers if one.run is None),
        "automatic_optimization": module.automatic_optimization,
        "LightningModule.backward()": is_overridden("backward", module),
        "training_step(dataloader_iter)": "dataloader_iter" in inspect.signature(module.training_step).parameters,
    }
    classes = {base.__name__ for callback in trainer.callbacks for base in type(callback).__mro__}
    refuse(values | {name: "a callback" for name in _CALLBACKS if name in classes}, _REFUSALS)
