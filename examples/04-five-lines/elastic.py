"""Handwritten digits. EPOCHS and STEP_SECONDS, in the environment, say how long it takes."""

import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

EPOCHS, STEP_SECONDS = int(os.environ.get("EPOCHS", "10")), float(os.environ.get("STEP_SECONDS", "0"))


def train() -> None:
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    train_set = TensorDataset(images[~held_out], labels[~held_out])

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(train_set, global_batch_size=64)

    for epoch in range(EPOCHS):
        for batch, target in job.steps(loader, epochs=epoch + 1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            job.backward(loss)
            optimizer.step()
            time.sleep(STEP_SECONDS)

    net.eval()
    with torch.no_grad():
        right = (net(images[held_out]).argmax(dim=1) == labels[held_out]).float().mean().item()
    print(f"accuracy on {int(held_out.sum())} held-out digits: {right:.4f}")


if __name__ == "__main__":
    with elastrain.join() as job:
        train()
