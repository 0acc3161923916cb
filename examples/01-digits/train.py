"""Handwritten digits (8x8 pixels, 1,797 of them, shipped with scikit-learn), trained by however many workers there are.

A plain PyTorch script with a handful of changed lines, marked (*). Options: --epochs, --batch-size, --lr, --seed;
--step-seconds, which slows every step down so that a person can watch a rescale; and, for ``demo.py``, --until, which
ends the training early, and --losses, which keeps what it draws.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import elastrain


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one step, over all workers together")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time that one step takes")
    parser.add_argument("--until", default="", help="a file: training ends when it exists")
    parser.add_argument("--losses", default="", help="folder for the loss of each step")
    return parser.parse_args()


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training set, and images and labels held out: every fifth digit."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~held_out], labels[~held_out]), images[held_out], labels[held_out]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def keep_losses(job: elastrain.Job, folder: Path) -> None:
    """Write a line per committed step: step, ranks, loss, time. By line, so that a killed process loses none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"losses.{socket.gethostname()}.{os.getpid()}.jsonl").open("a", buffering=1)
    job.on_commit(lambda: print(json.dumps([job.step, job.world_size, job.loss, time.time()]), file=file))


def main() -> None:
    args = options()
    torch.manual_seed(args.seed)
    train_set, test_images, test_labels = digits()

    with elastrain.join() as job:  # (*) instead of init_process_group
        net = network()
        model = job.wrap(net)  # (*) instead of DistributedDataParallel(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
        job.track(optimizer=optimizer)  # (*) what a joining worker must be given
        loader = job.dataloader(train_set, global_batch_size=args.batch_size, seed=args.seed)  # (*) with its sampler

        if args.losses:
            keep_losses(job, Path(args.losses))

        for images, labels in job.steps(
            loader, epochs=args.epochs
        ):  # (*) instead of the two loops over epochs, batches
            if args.until and Path(args.until).exists():
                job.stop()  # after this step, on all ranks
            began = time.monotonic()
            loss = nn.functional.cross_entropy(model(images), labels)
            job.backward(loss)  # (*) instead of loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))

        if job.rank == 0:
            net.eval()
            with torch.no_grad():
                right = (net(test_images).argmax(dim=1) == test_labels).float().mean().item()
            print(f"accuracy on {len(test_labels)} held-out digits: {right:.4f}")


if __name__ == "__main__":
    main()
