"""What Lightning's loop and its callbacks know after a step, besides module, optimizer and schedules."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from elastrain_frameworks.arrives import Arrives
from elastrain_frameworks.held import Held

_OF_SAVES = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""Of a ``ModelCheckpoint``, besides its ``state_dict()``."""


class Callbacks(Arrives):
    """Tracked: the state of the Trainer's callbacks, such as a patience counter or the path of the best checkpoint, and
    that of its ``LightningDataModule``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def present(self) -> dict[str, Any]:
        """By callback."""
        states = {key: one.state_dict() | _saves(one) for key, one in self._stateful().items()}
        return {key: state for key, state in states.items() if state}

    def apply(self, *, ghost: bool) -> None:
        """Go on with what has arrived; ``ghost``: Lightning's loop calls the events of that step itself."""
        received = self.taken(drop=ghost) or {}
        for key, callback in self._stateful().items():
            if (state := received.get(key)) is None:
                continue
            if isinstance(callback, ModelCheckpoint):
                callback.dirpath = state["dirpath"]  # as rank 0 has chosen it
                vars(callback).update({name: state[name] for name in _OF_SAVES if name in state})
            callback.load_state_dict({name: value for name, value in state.items() if name not in _OF_SAVES})

    def _stateful(self) -> dict[str, Any]:
        data = self._trainer.datamodule
        found: dict[str, Any] = {callback.state_key: callback for callback in self._trainer.callbacks}
        return found if data is None else found | {type(data).__qualname__: data}


def _saves(callback: Any) -> dict[str, Any]:
    found = vars(callback) if isinstance(callback, ModelCheckpoint) else {}
    return {name: found[name] for name in _OF_SAVES if name in found}


def held_by(trainer: Any) -> Held:
    """What the callbacks and the module hold beside the model's own parts."""
    module = trainer.lightning_module
    exporting = (one for one in trainer.callbacks if type(one).state_dict is not Callback.state_dict)
    known = [trainer.datamodule, *trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)]
    return Held([module, *trainer.callbacks], [module], carried=[module, *exporting], known=known)


def follow(trainer: Trainer, step: int, *, begun: bool) -> None:
    """Set the progress of Lightning's loops to that of the job; ``begun``: they are within a batch, not before it."""
    loop, more = trainer.fit_loop.epoch_loop, int(begun)
    epoch, batch = divmod(step, int(trainer.num_training_batches))
    for tracker in (trainer.fit_loop.epoch_progress.total, trainer.fit_loop.epoch_progress.current):
        tracker.ready = tracker.started = epoch + 1
        tracker.processed = tracker.completed = epoch
    for tracker, done in ((loop.batch_progress.total, step), (loop.batch_progress.current, batch)):
        tracker.ready = tracker.started = done + more
        tracker.processed = tracker.completed = done
    steps = loop.automatic_optimization.optim_progress.optimizer.step
    for tracker, done in ((steps.total, step), (steps.current, batch)):
        tracker.ready, tracker.completed = done + more, done
    loop.on_load_checkpoint({"_batches_that_stepped": step})
    trainer.fit_loop._data_fetcher.fetched = batch + more
