"""The examples as local jobs: grown, hit by a kill, and audited at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from elastrain_cli.local.runner import LocalJob
from elastrain_cli.local.status import LocalStatus
from scripted_loop import ScriptedJob
from warm import Warm

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE = 60.0
"""Seconds for one change of size on a machine that is busy with other tests."""


class Trial:
    """One example under ``elastrain run``, and its output."""

    def __init__(self, example: str, state: Path, environment: dict[str, str]) -> None:
        self.lines: list[tuple[str, str]] = []
        self.job = LocalJob(
            EXAMPLES / example / "job.yaml",
            state_dir=state,
            replicas=1,
            environment=environment,
            lease_ttl=2,
            on_line=lambda worker, line: self.lines.append((worker, line)),
        )

    def await_workers(self, count: int) -> LocalStatus:
        """Wait until ``count`` workers train together."""
        return self.job.wait(
            lambda s: s.in_force == count and s.generation and s.generation.size == count,
            timeout=PATIENCE,
            what=f"{count} workers to train together{self.tail()}",
        )

    def await_line(self, text: str, after: int = 0) -> int:
        """Wait until ``text`` was printed after line ``after``; returns the number of lines at that time."""
        deadline = time.monotonic() + PATIENCE
        while not any(text in line for _, line in self.lines[after:]):
            assert time.monotonic() < deadline and self.job.result is None, f"not printed: {text!r}{self.tail()}"
            self.job.await_change(0.1)
        return len(self.lines)

    def printed(self, text: str) -> list[str]:
        return [line for _, line in self.lines if text in line]

    def tail(self) -> str:
        return "\n" + "\n".join(f"{worker} | {line}" for worker, line in self.lines[-40:])


@pytest.fixture
def trial(tmp_path: Path, warm_agents: Warm) -> Iterator[Callable[..., Trial]]:
    """``trial("03-torchrun", EPOCHS="5")`` starts an example with one worker; it is killed at the end of the test."""
    trials: list[Trial] = []

    def start(example: str, **environment: str) -> Trial:
        # By this variable, processes that have left their process group are found.
        one = Trial(example, tmp_path / "state", {"ELASTRAIN_TEST_TRIAL": str(tmp_path), **environment})
        trials.append(one)
        one.job.__enter__()
        return one

    yield start
    for one in trials:
        one.job.__exit__(None, None, None)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ELASTRAIN_TEST_TRIAL") == str(tmp_path):
                process.kill()


@pytest.fixture
def require() -> Callable[[str, str], None]:
    """``require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")`` skips if the package is not installed, or fails if the
    variable is 1."""

    def check(package: str, variable: str) -> None:
        if importlib.util.find_spec(package) is not None:
            return
        if os.environ.get(variable) == "1":
            pytest.fail(f"{variable}=1, but {package} is not installed", pytrace=False)
        pytest.skip(f"{package} is not installed")

    return check


@pytest.fixture
def fit(require, tmp_path):
    """Fits a small module over a scripted job of 5 steps an epoch, or without one; returns what both have seen."""
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import Logger

    from elastrain_frameworks.lightning_trainer import ElasticTrainerStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.executions, self.ends, self.validated = torch.nn.Linear(2, 1), 0, [], []

        def training_step(self, batch, batch_idx):
            self.executions += 1
            return self.net(batch[0]).square().mean()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.ends.append((self.trainer.current_epoch, self.trainer.fit_loop.batch_idx, self.trainer.global_step))

        def validation_step(self, batch, batch_idx):
            self.log("val", self.net(batch[0]).square().mean(), sync_dist=True)

        def on_validation_end(self):
            self.validated.append(self.trainer.global_step)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def run(job, module=None, **options):
        data = torch.utils.data.TensorDataset(torch.ones(20, 2))
        trainer = Trainer(
            **{
                "accelerator": "cpu",
                "devices": 1,
                "strategy": ElasticTrainerStrategy(job, global_batch_size=4) if job else "auto",
                "max_epochs": 2,
                "num_sanity_val_steps": 0,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": tmp_path,
                **options,
            }
        )
        module = module or Module()
        loader = torch.utils.data.DataLoader(data, batch_size=2 if job else 4, shuffle=True)
        trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=10))
        return trainer, module

    class Recorded(Logger):
        name, version = "recorded", 1

        def __init__(self) -> None:
            super().__init__()
            self.kept = []

        def log_metrics(self, metrics, step=None):
            self.kept.append((step, metrics))

        def log_hyperparams(self, *_):
            pass

    run.module, run.recorded = Module, Recorded
    return run


@pytest.fixture
def clocks_behind(monkeypatch) -> None:
    """Each next process of a job has a clock that is behind that of the last one: TensorBoard orders files by it."""
    from tensorboard.summary.writer import event_file_writer

    begins, ticks = itertools.count(2 * 10**9, -1000), itertools.count()
    clock = SimpleNamespace(time=lambda: clock.begin + next(ticks), sleep=time.sleep, begin=next(begins))
    made = ScriptedJob.__init__

    def make(job, *args, **options) -> None:
        clock.begin = next(begins)
        made(job, *args, **options)

    monkeypatch.setattr(ScriptedJob, "__init__", make)
    monkeypatch.setattr(event_file_writer, "time", clock)
