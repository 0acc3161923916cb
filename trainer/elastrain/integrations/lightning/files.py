"""Files of Lightning's Trainer: rank 0 writes them, and a new rank 0 goes on where the last one has stopped.

All ranks make the same calls of loggers and of checkpoints. A call is kept until the next step is committed: rank 0
takes part in the sums of that step only behind its own calls. So if it is lost before it has ended them, all ranks
still have the state that they write, and the new rank 0 makes them again. What belongs to no committed step is cut off.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.logger import _convert_params
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from elastrain.data.rng import Kept
from elastrain.elastic.encoding import decode, encode
from elastrain.elastic.job import Job


class Files:
    """Tracked: the names that rank 0 has chosen, and how far it has written."""

    def __init__(self, job: Job, trainer: Trainer) -> None:
        """Opens nothing: which rank this process has is not known before it is in a generation."""
        self.writes = False
        """Whether this process is rank 0, and goes on with the files."""
        self._job, self._trainer = job, trainer
        self._calls: list[Callable[[], object]] = []
        self._ended: int | None = None
        """Calls of the step before; None: it has not ended."""
        self._waiting: list[Callable[[], object]] = []
        """Calls of a step behind which the generation changes: its rank 0 may leave, and others go on meanwhile."""
        self._keeps, self._over = True, False
        self._received: bytes | None = None
        self._checkpoints: set[str] = set()
        """Paths that a new checkpoint must not take: those in the folders at the beginning, and those written since."""
        for logger in trainer.loggers:
            kind = next((of_job for of, of_job in _KINDS if isinstance(logger, of)), OfJob)
            if not isinstance(logger, OfJob):
                logger.__class__ = type(type(logger).__name__, (kind, type(logger)), {})
            logger.files = self

    def see_folders(self) -> None:
        """Callbacks know their folders now."""
        for callback in _checkpoints_of(self._trainer):
            folder = str(callback.dirpath)
            files = get_filesystem(folder)
            found = files.ls(folder, detail=False) if files.isdir(folder) else []
            self._checkpoints |= {os.path.join(folder, os.path.basename(path)) for path in found}  # noqa: PTH118, PTH119
            callback.file_exists = lambda path, _: str(path) in self._checkpoints

    def call(self, function: Callable[[], object]) -> None:
        """Rank 0 calls it; again by a new rank 0 if this one is lost meanwhile."""
        if self._keeps:
            self._calls.append(function)
        if self.writes and self._job.switches:
            self._waiting.append(function)
        elif self.writes and not self._over:
            function()

    def save(self, write: Callable[..., object], checkpoint: Any, path: Any, options: Any) -> None:
        """A checkpoint of the present state."""
        self._checkpoints.add(str(path))
        self.call(partial(write, checkpoint, path, options))

    def remove(self, remove: Callable[..., object], path: Any) -> None:
        """A checkpoint."""
        self._checkpoints.discard(str(path))
        self.call(partial(remove, path))

    # -- the steps -----------------------------------------------------------------------------------------------------
    def step_ends(self) -> None:
        """The next one, or its epoch, begins. Nothing if that has been said already."""
        if self._ended is None:
            self._ended = len(self._calls)
            for logger in self._trainer.loggers:
                logger.step_ends()

    def flush(self) -> None:
        """Rows have to be in the files before the job can count the step as saved."""
        for logger in self._trainer.loggers if self.writes else ():
            if logger.rows > logger.saved:
                logger.save()

    def committed(self) -> None:
        """A step is, and rank 0 has taken part in it: the calls of the one before are made."""
        self.step_ends()
        del self._calls[: self._ended]
        self._ended = None
        for logger in self._trainer.loggers:
            logger.settled = logger.ended

    def end(self, *, over: bool = False) -> None:
        """The loop has, and no rank 0 is replaced any more. ``over``: before this process came; it makes no calls."""
        self._calls.clear()
        self._keeps, self._over = False, over

    def follow(self) -> None:
        """This process has the rank of the present generation. A new rank 0 takes over."""
        zero = self._job.rank == 0
        rank_zero_only.rank = self._job.rank
        waiting, self._waiting = self._waiting, []
        if zero != self.writes:
            waiting, self.writes = self._calls, zero
            for logger in self._trainer.loggers:
                logger.go_on() if zero else logger.let_go()
        if not (zero and waiting):
            return
        with Kept():
            for function in waiting:
                function()
        for logger in self._trainer.loggers:
            logger.save()

    # -- state ---------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, bytes]:
        """Of the last committed step."""
        if self._received is not None:
            return {"encoded": self._received}
        loggers = [logger.place() for logger in self._trainer.loggers]
        return {"encoded": encode((loggers, sorted(self._checkpoints)))}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        """Keep it for :meth:`apply`."""
        self._received = state["encoded"]

    def apply(self, *, ghost: bool) -> None:
        """Go on with what has arrived; ``ghost``: Lightning's loop makes the calls of that step itself."""
        if self._received is not None and not ghost:
            loggers, checkpoints = decode(self._received)
            self._checkpoints = {*checkpoints}
            if self._job.step:  # before the first one each process has made the same calls
                self._calls.clear()
                self._ended = 0
            for logger, (version, *place) in zip(self._trainer.loggers, loggers, strict=True):
                logger.call_it(version)
                if self._job.step:
                    logger.take(*place)
        self._received = None


def _checkpoints_of(trainer: Trainer) -> list[Any]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


def _plain(row: dict[str, Any]) -> dict[str, float]:
    return {name: value if isinstance(value, int) else float(value) for name, value in row.items()}


class OfJob(Logger):
    """First base of the class of a logger's object. Its rows go to files only on rank 0."""

    files: Files
    rows = saved = 0
    """Logged; in the files."""
    latest = -1
    """The greatest number of a row's step."""
    ended = settled = 0, -1
    """Both, when the last step ended; when the last one ended whose rows are surely written."""
    tail: tuple[tuple[dict[str, Any], int | None], ...] = ()
    """Rows since the last step ended."""

    @property
    def experiment(self) -> Any:
        """Lightning's stand-in if this process does not write."""
        return super().experiment if self.files.writes else _DummyExperiment()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows += 1
        self.latest = max(self.latest, -1 if step is None else step)
        self.tail = *self.tail, (dict(metrics), step)
        self.files.call(partial(super().log_metrics, dict(metrics), step))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.files.call(partial(super().log_hyperparams, params, *args, **kwargs))

    def log_graph(self, *args: Any, **kwargs: Any) -> None:
        self.files.call(partial(super().log_graph, *args, **kwargs))

    def save(self) -> None:
        if self.files.writes:
            super().save()
            self.saved = self.rows

    def finalize(self, status: str) -> None:
        if self.files.writes:
            super().finalize(status)

    # -- a new rank 0 --------------------------------------------------------------------------------------------------
    def step_ends(self) -> None:
        """As of :meth:`Files.step_ends`."""
        self.ended, self.tail = (self.rows, self.latest), ()

    def place(self) -> tuple[Any, ...]:
        """What another process needs to go on."""
        return self.version, *self.ended, [(_plain(row), step) for row, step in self.tail]

    def take(self, rows: int, latest: int, tail: list[tuple[dict[str, float], int | None]]) -> None:
        """Go on at the place of another process."""
        self.rows, self.latest = rows, latest
        self.step_ends()
        self.settled = self.ended
        for metrics, step in tail:
            self.log_metrics(metrics, step)

    def call_it(self, version: Any) -> None:
        """The version of the run that rank 0 has chosen."""

    def go_on(self) -> None:
        """This process writes from now on: behind the settled rows."""

    def let_go(self) -> None:
        """Another one does."""


class _Versioned(OfJob):
    """A logger with a folder ``version_N``."""

    _version: Any
    _experiment: Any

    def call_it(self, version: Any) -> None:
        self._version = version

    def let_go(self) -> None:
        self._experiment = None


class OfCsv(_Versioned):
    """One row in ``metrics.csv`` for each call."""

    hparams: dict[str, Any]
    """All that this process has logged."""

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        self.hparams = {**vars(self).get("hparams", {}), **_convert_params(params)}
        super().log_hyperparams(params, *args, **kwargs)

    def go_on(self) -> None:
        self._experiment = _Appends(self.log_dir)
        self._experiment.hparams.update(vars(self).get("hparams", {}))
        self._experiment.go_on(self.settled[0])


class OfTensorBoard(_Versioned):
    """Each rank 0 has an events file; TensorBoard leaves out what an earlier one has behind the begin of the next."""

    _kwargs: dict[str, Any]

    def go_on(self) -> None:
        self._experiment, self._kwargs["purge_step"] = None, self.settled[1] + 1

    def let_go(self) -> None:
        if self._experiment is not None:
            self._experiment.close()
        super().let_go()


_KINDS = ((CSVLogger, OfCsv), (TensorBoardLogger, OfTensorBoard))


class _Appends(ExperimentWriter):
    """Goes on with a file; Lightning's begins a new one. A kill of its process loses no row that is there."""

    def go_on(self, rows: int) -> None:
        """Behind so many rows; without one as Lightning's, which begins anew."""
        if not self._fs.isfile(self.metrics_file_path):
            return
        if not rows:
            self._fs.rm_file(self.metrics_file_path)
            return
        with self._fs.open(self.metrics_file_path, "r", newline="") as file:
            reader = csv.DictReader(file)
            kept = [*itertools.islice(reader, rows)]
            self.metrics_keys = [*(reader.fieldnames or [])]
        self._replace(kept)

    def _check_log_dir_exists(self) -> None:
        """Lightning's removes the file."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with self._fs.open(self.metrics_file_path, "r", newline="") as file:
            rows = [*csv.DictReader(file)]
        self._replace(rows)

    def _replace(self, rows: list[dict[str, Any]]) -> None:
        """The file has ``rows``, at once."""
        new = f"{self.metrics_file_path}.new"
        with self._fs.open(new, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)
        self._fs.mv(new, self.metrics_file_path)
