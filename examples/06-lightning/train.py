"""Handwritten digits by a LightningModule in Lightning Fabric. The lines that make it elastic are marked (*)."""

import argparse
import time

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.integrations.lightning import ElasticStrategy


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    options = parser.parse_args()
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0

    with elastrain.join() as job:  # (*)
        fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job))  # (*)
        fabric.seed_everything(0, verbose=False)
        digits = Digits()
        model, optimizer = fabric.setup(digits, digits.configure_optimizers())
        train_set = TensorDataset(images[~held_out], labels[~held_out])
        loader = job.dataloader(train_set, global_batch_size=64)  # (*) instead of fabric.setup_dataloaders
        for batch in job.steps(loader, epochs=options.epochs):  # (*) instead of the two loops over epochs, batches
            loss = model.training_step(fabric.to_device(batch))
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(options.step_seconds)

        if fabric.is_global_zero:
            with torch.no_grad():
                right = (digits.net(images[held_out]).argmax(dim=1) == labels[held_out]).float().mean().item()
            print(f"accuracy on {int(held_out.sum())} held-out digits: {right:.4f}")


if __name__ == "__main__":
    main()
