"""Handwritten digits. EPOCHS and STEP_SECONDS, in the environment, say how long it takes."""

import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    model = DistributedDataParallel(net)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=64 // dist.get_world_size(), sampler=sampler)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            time.sleep(STEP_SECONDS)

    net.eval()
    with torch.no_grad():
        right = (net(images[held_out]).argmax(dim=1) == labels[held_out]).float().mean().item()
    print(f"accuracy on {int(held_out.sum())} held-out digits: {right:.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
