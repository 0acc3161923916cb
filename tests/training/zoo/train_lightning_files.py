"""Lightning's Trainer with its logger, checkpoints and callbacks; saves what it has left in its folder."""

import argparse
import csv
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"width": 8})
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, batch):
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("samples", float(len(batch[0])), reduce_fx="sum", on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.loss(batch), batch_size=len(batch[0]))

    def test_step(self, batch, batch_idx):
        self.log("tested", self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def columns(path):
    """The rows of a file: by name and step, the numbers."""
    found = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    found.setdefault(f"{name} of {row['step']}", []).append(float(value))
    return found


def main(job):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(160, 4, generator=generator)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    checkpoint = ModelCheckpoint(monitor="val", save_top_k=2, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        strategy=ElasticTrainerStrategy(job, global_batch_size=16),
        max_epochs=8,
        log_every_n_steps=3,
        logger=CSVLogger(out.parent),
        callbacks=[checkpoint, LearningRateMonitor()],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net()
    trainer.fit(net, DataLoader(data, batch_size=5, shuffle=True), DataLoader(data, batch_size=40))
    tested = trainer.test(net, DataLoader(data, batch_size=40), ckpt_path="best", verbose=False)
    if trainer.is_global_zero:
        logs = out.parent / "lightning_logs"
        torch.save(
            {
                "model": net.state_dict(),
                "rows": columns(logs / "version_0/metrics.csv"),
                "files": sorted(str(path.relative_to(logs)) for path in logs.rglob("*.*")),
                "best": [float(value) for value in checkpoint.best_k_models.values()],
                "paths": [Path(path).name for path in (checkpoint.best_model_path, checkpoint.last_model_path)],
                "tested": tested,
            },
            out,
        )


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)
