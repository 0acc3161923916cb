"""Files of Lightning's Trainer: those of its loggers, and the checkpoints of its callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from elastrain.elastic.job import Job
from elastrain_frameworks.files import Files
from elastrain_frameworks.lightning.loggers import of_job


class FilesOfTrainer(Files):
    """Tracked: also the paths of checkpoints."""

    def __init__(self, job: Job, trainer: Trainer) -> None:
        super().__init__(job, of_job(trainer.loggers))
        self._checkpoints: set[str] = set()
        """Paths that a new checkpoint must not take: those in the folders at the beginning, and those written since."""

    def see_folders(self, trainer: Trainer) -> None:
        """Callbacks know their folders now."""
        for callback in trainer.checkpoint_callbacks:
            if not isinstance(callback, ModelCheckpoint):
                continue
            folder = str(callback.dirpath)
            files = get_filesystem(folder)
            found = files.ls(folder, detail=False) if files.isdir(folder) else []
            self._checkpoints |= {os.path.join(folder, os.path.basename(path)) for path in found}  # noqa: PTH118, PTH119
            callback.file_exists = lambda path, _: str(path) in self._checkpoints

    def save(self, write: Callable[..., object], checkpoint: Any, path: Any, options: Any) -> None:
        """A checkpoint of the present state."""
        self._checkpoints.add(str(path))
        self.call(partial(write, checkpoint, path, options))

    def remove(self, remove: Callable[..., object], path: Any) -> None:
        """A checkpoint."""
        self._checkpoints.discard(str(path))
        self.call(partial(remove, path))

    def present(self) -> Any:
        return super().present(), sorted(self._checkpoints)

    def taken(self, *, keep: bool = False, drop: bool = False) -> Any:
        """The places of the loggers."""
        if (taken := super().taken(keep=keep, drop=drop)) is None:
            return None
        places, checkpoints = taken
        self._checkpoints = {*checkpoints}
        return places
