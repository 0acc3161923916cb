"""What transformers' Trainer reports to TensorBoard and W&B: one folder, or run, with which a new rank 0 goes on."""

from __future__ import annotations

import copy
import os
import socket
import time
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback, WandbCallback

from elastrain_frameworks import events
from elastrain_frameworks.files import Logs, becomes, new_id


class _OfJob(Logs):
    """First base of the class of a callback that reports."""

    trainer: Any

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.add(logs, state.global_step, {})

    def write(self, row: dict[str, Any], step: int | None, options: dict[str, Any]) -> None:
        t, state = self.trainer, copy.copy(self.trainer.state)
        state.global_step = step
        super().on_log(t.args, state, t.control, model=t.model, logs={**row})  # type: ignore[misc]


class _OfTensorBoard(_OfJob):
    """Each rank 0 has an events file; TensorBoard leaves out what an earlier one has behind the begin of the next."""

    logging_dir: str
    tb_writer: Any
    _SummaryWriter: Any

    @property
    def run(self) -> str:
        """The folder."""
        return self.logging_dir

    @run.setter
    def run(self, folder: str) -> None:
        self.logging_dir = folder

    def go_on(self) -> None:
        if self.rows:
            self.let_go()
            events.come_last_in(self.run)
            self.tb_writer = self._SummaryWriter(log_dir=self.run, purge_step=self.settled[1] + 1)

    def let_go(self) -> None:
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = None


class _OfWandb(_OfJob):
    """A run with an id: each rank 0 resumes it."""

    _wandb: Any
    _initialized: bool

    def go_on(self) -> None:
        os.environ["WANDB_RUN_ID"] = self.run  # by these variables W&B takes a run
        os.environ.setdefault("WANDB_RESUME", "allow")
        self._initialized = False  # the callback opens the run at the begin of training, or with its next row

    def let_go(self) -> None:
        self._wandb.finish()


def boards_of(trainer: Any) -> list[Any]:
    """Make the callbacks that report those of the job, with a folder and a run that rank 0's state names for all."""
    found: list[Any] = []
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"  # as transformers does
            callback.logging_dir = callback.logging_dir or str(Path(trainer.args.output_dir, "runs", name))
            found.append(becomes(callback, _OfTensorBoard))
        elif isinstance(callback, WandbCallback):
            found.append(becomes(callback, _OfWandb))
            callback.run = os.environ.get("WANDB_RUN_ID") or new_id()
    for board in found:
        board.trainer = trainer
    return found
