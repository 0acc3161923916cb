"""Lightning's loggers, of Fabric and of the Trainer, as those of a job: one run, whatever becomes of rank 0."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.fabric.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.fabric.loggers.csv_logs import _ExperimentWriter
from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.fabric.utilities.logger import _convert_params
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from elastrain_frameworks import events
from elastrain_frameworks.files import Logs, becomes, new_id


class OfJob(Logger, Logs):  # in this order: an object of Logger can become one of it
    """First base of the class of a logger's object. Its rows go to files only on rank 0."""

    acts: Any = staticmethod(lambda name: True)
    """As of :meth:`elastrain_frameworks.files.FilesOfScript.acts`."""

    @property
    def experiment(self) -> Any:
        """Lightning's stand-in if this process does not write."""
        return super().experiment if self.files.writes else _DummyExperiment()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if self.acts("fabric.log()"):
            self.add(metrics, step, {})

    def write(self, row: dict[str, Any], step: int | None, options: dict[str, Any]) -> None:
        super().log_metrics(row, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.files.call(partial(super().log_hyperparams, params, *args, **kwargs))

    def log_graph(self, *args: Any, **kwargs: Any) -> None:
        self.files.call(partial(super().log_graph, *args, **kwargs))

    def save(self) -> None:
        if self.files.writes:
            super().save()

    def finalize(self, status: str) -> None:
        if self.files.writes:
            super().finalize(status)

    @property
    def run(self) -> Any:
        """The version."""
        return self.version

    @run.setter
    def run(self, run: Any) -> None:
        """Of another kind of logger: given by the script."""


class _Versioned(OfJob):
    """A logger with a folder ``version_N``."""

    _experiment: Any

    @property
    def run(self) -> Any:
        """N."""
        return self.version

    @run.setter
    def run(self, run: Any) -> None:
        self._version = run

    def let_go(self) -> None:
        self._experiment = None


class OfCsv(_Versioned):
    """One row in ``metrics.csv`` for each call."""

    log_dir: str
    hparams: dict[str, Any]
    """All that this process has logged."""

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        self.hparams = {**vars(self).get("hparams", {}), **_convert_params(params)}
        super().log_hyperparams(params, *args, **kwargs)

    def go_on(self) -> None:
        kind = ExperimentWriter if hasattr(self, "save_dir") else _ExperimentWriter
        self._experiment = type("Appends", (_Appends, kind), {})(self.log_dir)
        if hasattr(self._experiment, "hparams"):
            self._experiment.hparams.update(vars(self).get("hparams", {}))
        self._experiment.go_on(self.settled[0])


class OfTensorBoard(_Versioned):
    """Each rank 0 has an events file; TensorBoard leaves out what an earlier one has behind the begin of the next."""

    log_dir: str
    _kwargs: dict[str, Any]

    def go_on(self) -> None:
        events.come_last_in(self.log_dir)
        self._experiment, self._kwargs["purge_step"] = None, self.settled[1] + 1

    def let_go(self) -> None:
        if self._experiment is not None:
            self._experiment.close()
        super().let_go()


class OfWandb(OfJob):
    """A run with an id: each rank 0 resumes it."""

    _id: str | None
    _experiment: Any
    _wandb_init: dict[str, Any]

    @property
    def run(self) -> str:
        """The id, which has to be known before the run exists: new, if the script has given none."""
        self.run = self._id or new_id()
        return str(self._id)

    @run.setter
    def run(self, run: str) -> None:
        self._id = self._wandb_init["id"] = run

    def let_go(self) -> None:
        if self._experiment is not None:
            self._experiment.finish()
            self._experiment = None


_KINDS: tuple[tuple[type, type], ...] = (
    (CSVLogger, OfCsv), (TensorBoardLogger, OfTensorBoard), (WandbLogger, OfWandb),
)  # fmt: skip


def of_job(loggers: Sequence[Any]) -> list[Any]:
    """Make each of them a logger of the job."""
    return [becomes(one, next((ours for of, ours in _KINDS if isinstance(one, of)), OfJob)) for one in loggers]


class _Appends(_ExperimentWriter):
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
