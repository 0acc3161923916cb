"""TensorBoard's events of transformers' Trainer: one folder, with which a new rank 0 goes on."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback


class Boards:
    """The callbacks of one Trainer that write events. TensorBoard leaves out what an earlier writer has written from
    the step on at which the next one begins."""

    def __init__(self, trainer: Any) -> None:
        """Chooses the folders, which rank 0's state names for all."""
        self._trainer = trainer
        self._writes = False
        name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"  # as transformers does
        for board in self._boards():
            board.logging_dir = board.logging_dir or str(Path(trainer.args.output_dir, "runs", name))

    @property
    def folders(self) -> list[str]:
        """Of this process, or those of the job when it has received them."""
        return [board.logging_dir for board in self._boards()]

    @folders.setter
    def folders(self, folders: list[str]) -> None:
        for board, folder in zip(self._boards(), folders, strict=False):
            board.logging_dir = folder

    def follow(self, step: int) -> None:
        """This process has the rank of the present generation, and ``step`` steps are committed.

        The last rank 0 has written the rows of that step, or was lost before: a new one writes them again.
        """
        zero = self._trainer.job.rank == 0
        if zero and not self._writes and step:
            for board in self._boards():
                if board.tb_writer is not None:
                    board.tb_writer.close()
                board.tb_writer = board._SummaryWriter(log_dir=board.logging_dir, purge_step=step)
                for row in (row for row in self._trainer.state.log_history if row["step"] == step):
                    logs = {name: value for name, value in row.items() if name != "step"}
                    board.on_log(self._trainer.args, self._trainer.state, self._trainer.control, logs=logs)
        self._writes = zero

    def _boards(self) -> list[TensorBoardCallback]:
        return [c for c in self._trainer.callback_handler.callbacks if isinstance(c, TensorBoardCallback)]
