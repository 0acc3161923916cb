"""Weights & Biases, offline: all ranks 0 of a job write to one run. Without the package nothing is tested."""

from __future__ import annotations

import pytest
import torch

from scripted_loop import Killed, ScriptedJob

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb").teardown()  # it has read the variables of the last test
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def with_lightning(job, tmp_path, fit):
    from lightning.pytorch.loggers import WandbLogger

    class Logs(fit.module):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    fit(job, Logs(), logger=WandbLogger(save_dir=tmp_path, offline=True), log_every_n_steps=1)


def with_accelerate(job, tmp_path, fit):
    from elastrain_frameworks.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(job, cpu=True, log_with="wandb")
    net = torch.nn.Linear(1, 1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(20, 1)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), data)
    accelerator.init_trackers("project")
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
        accelerator.log({"loss": 1.0})
    accelerator.end_training()


def with_transformers(job, tmp_path, fit):
    from elastrain_frameworks.huggingface import ElasticTrainer, ElasticTrainingArguments

    class Net(torch.nn.Linear):
        def forward(self, x):
            return {"loss": super().forward(x).sum()}

    arguments = ElasticTrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=["wandb"], logging_steps=1, num_train_epochs=1,
        per_device_train_batch_size=2,
    )  # fmt: skip
    data = [{"x": torch.ones(1)} for _ in range(20)]
    ElasticTrainer(job=job, model=Net(1, 1), args=arguments, train_dataset=data).train()


@pytest.mark.parametrize("train", [with_lightning, with_accelerate, with_transformers])
@pytest.mark.parametrize("dies_at", [1, 4])
def test_new_rank_0_writes_to_the_run_of_the_last_one(train, dies_at, tmp_path, fit, monkeypatch):
    import wandb

    dead = ScriptedJob()
    dead.dies_at = dies_at
    with pytest.raises(Killed):
        train(dead, tmp_path, fit)
    if wandb.run is not None:
        wandb.finish()  # a killed process has none
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)  # of another process
    job = ScriptedJob(*["committed"] * dead.step, "discarded", peer=dead, rank=1)
    job.ranks = {dead.step + 2: 0}
    train(job, tmp_path, fit)
    if wandb.run is not None:
        wandb.finish()
    runs = [path.name.rpartition("-")[2] for path in tmp_path.rglob("offline-run-*") if path.is_dir()]
    assert len({*runs}) == 1 and (dies_at == 1 or len(runs) == 2), runs
