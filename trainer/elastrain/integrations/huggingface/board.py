"""What transformers' Trainer reports to TensorBoard and W&B: one folder, or run, with which a new rank 0 goes on."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback, WandbCallback

from elastrain.integrations.files import new_id

_RUN = "WANDB_RUN_ID"


class Boards:
    """The callbacks of one Trainer that report. TensorBoard leaves out what an earlier writer has written from the step
    on at which the next one begins; the rows of that step may be twice at W&B."""

    def __init__(self, trainer: Any) -> None:
        """Chooses the folders, which rank 0's state names for all."""
        self._trainer = trainer
        self._writes = False
        name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"  # as transformers does
        for board in self._boards():
            board.logging_dir = board.logging_dir or str(Path(trainer.args.output_dir, "runs", name))
        if self._runs():  # by these variables W&B takes a run
            os.environ.setdefault(_RUN, new_id())
            os.environ.setdefault("WANDB_RESUME", "allow")

    @property
    def chosen(self) -> tuple[list[str], str | None]:
        """The folders and the id of the run: of this process, or those of the job when it has received them."""
        return [board.logging_dir for board in self._boards()], os.environ[_RUN] if self._runs() else None

    @chosen.setter
    def chosen(self, chosen: tuple[list[str], str | None]) -> None:
        folders, run = chosen
        for board, folder in zip(self._boards(), folders, strict=False):
            board.logging_dir = folder
        if run is not None:
            os.environ[_RUN] = run

    def follow(self, step: int) -> None:
        """This process has the rank of the present generation, and ``step`` steps are committed.

        The last rank 0 has written the rows of that step, or was lost before: a new one writes them again.
        """
        zero = self._trainer.job.rank == 0
        for run in self._runs() if zero and not self._writes else ():
            run._initialized = False  # it opens the run with its next row
        if zero and not self._writes and step:
            for board in self._boards():
                if board.tb_writer is not None:
                    board.tb_writer.close()
                board.tb_writer = board._SummaryWriter(log_dir=board.logging_dir, purge_step=step)
            for row in (row for row in self._trainer.state.log_history if row["step"] == step):
                logs, t = {name: value for name, value in row.items() if name != "step"}, self._trainer
                for callback in [*self._boards(), *self._runs()]:
                    callback.on_log(t.args, t.state, t.control, model=t.model, logs={**logs})
        self._writes = zero

    def _boards(self) -> list[TensorBoardCallback]:
        return [c for c in self._trainer.callback_handler.callbacks if isinstance(c, TensorBoardCallback)]

    def _runs(self) -> list[WandbCallback]:
        return [c for c in self._trainer.callback_handler.callbacks if isinstance(c, WandbCallback)]
