"""Handwritten digits, trained by a stock torchrun script: nothing in it knows of elastrain.

    torchrun --nproc-per-node=2 train.py

As any script for torchrun that wants to survive a restart, it takes up its last snapshot, which rank 0 writes at the
end of each epoch.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one step on one rank")
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"), help="on a volume that all nodes share")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time that one step takes")
    return parser.parse_args()


def main() -> None:
    args = options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    train_set = TensorDataset(images[~held_out], labels[~held_out])

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    first = 0
    if args.snapshot.exists():
        snapshot = torch.load(args.snapshot)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epochs"]
        if rank == 0:
            print(f"goes on after {first} epochs from {args.snapshot}")

    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            began = time.monotonic()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))
        if rank == 0:
            print(f"epoch {epoch} by {dist.get_world_size()} ranks: loss {loss.item():.4f}")
            args.snapshot.parent.mkdir(parents=True, exist_ok=True)
            partial = args.snapshot.with_suffix(f".{os.getpid()}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, partial)
            partial.rename(args.snapshot)  # whole or not at all

    if rank == 0:
        with torch.no_grad():
            right = (model.module(images[held_out]).argmax(dim=1) == labels[held_out]).float().mean().item()
        print(f"accuracy on {int(held_out.sum())} held-out digits: {right:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
