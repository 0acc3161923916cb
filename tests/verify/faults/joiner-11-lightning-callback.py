"""A callback of Lightning's Trainer counts steps and weighs the loss by them."""

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.lightning_trainer import ElasticTrainerStrategy

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, number):
        return F.mse_loss(self.net(batch[0]), batch[1]) / (1 + Count.steps)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Count(Callback):
    steps = 0

    def on_train_batch_end(self, *_):
        Count.steps += 1


with elastrain.join() as job:
    strategy = ElasticTrainerStrategy(job, global_batch_size=8)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Count()],
    )
    trainer.fit(Net(), DataLoader(data, batch_size=8, shuffle=True))
