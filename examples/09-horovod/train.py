"""Handwritten digits by Horovod Elastic. Nothing in it knows of elastrain.

TorchState holds the model in the memory of the processes, where it survives the loss of some of them. Rank 0 also saves
it to --save, from which all start if the launcher was lost with its memory.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one step on one rank")
    parser.add_argument("--save", type=Path, default=Path("horovod.pt"), help="on a volume that all workers share")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time that one step takes")
    return parser.parse_args()


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16.0
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~held_out], labels[~held_out]), images[held_out], labels[held_out]


def save(state: hvd.elastic.TorchState, path: Path) -> None:
    if hvd.rank() != 0:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    model, optimizer = state.model.state_dict(), state.optimizer.state_dict()
    torch.save({"model": model, "optimizer": optimizer, "epoch": state.epoch}, partial)
    partial.rename(path)  # whole or not at all


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, args: argparse.Namespace, train_set: TensorDataset) -> None:
    loss = torch.zeros(())
    while state.epoch < args.epochs:
        for batch, target in DataLoader(train_set, batch_size=args.batch_size, sampler=state.sampler):
            began = time.monotonic()
            state.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(state.model(batch), target)
            loss.backward()
            state.optimizer.step()
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))
            state.sampler.record_batch(0, args.batch_size)
            state.steps += 1
            if state.steps % 5 == 0:
                state.commit()  # a joiner waits for it, and a loss returns to it
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} by {hvd.size()} ranks, pid {os.getpid()}: loss {loss.item():.4f}", flush=True)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        save(state, args.save)
        state.commit()


def main() -> None:
    args = options()
    hvd.init()
    torch.manual_seed(0)
    train_set, images, labels = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(train_set)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, steps=0)
    if hvd.rank() == 0 and args.save.exists():  # the decorator sends it to all
        saved = torch.load(args.save)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.epoch = saved["epoch"]
        sampler.set_epoch(state.epoch)
        print(f"goes on after {state.epoch} epochs from {args.save}", flush=True)
    state.save()
    train(state, args, train_set)
    if hvd.rank() == 0:
        with torch.no_grad():
            right = (model(images).argmax(dim=1) == labels).float().mean().item()
        print(f"accuracy on {len(labels)} held-out digits: {right:.4f}", flush=True)


if __name__ == "__main__":
    main()
