"""Trains a small model on handwritten digits, with SGD."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic import batching
from elastrain.sizing.speedup import Batches

out, epochs = Path(sys.argv[1]), int(sys.argv[2])
batching.CHANGE_SECONDS, batching.REVIEW_SECONDS, batching.MEASURE_EVERY = 0, 0, 2  # a short run
torch.set_num_threads(1)
torch.manual_seed(0)


def choose(*, factor: int, batches: Batches, **_: object) -> int:
    """By the noise alone, so that the speed of the machine does not matter: a batch of up to the noise scale."""
    most = min(int(batches.noise or 0), batches.most) // batches.base
    return max(min(2 * factor, most), 1)


batching.choose = choose


def digits() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
    return data, net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


with elastrain.join() as job:
    data, net, optimizer = digits()
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=32, micro_batch_size=16, seed=1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    job.track(scheduler=scheduler)
    spans, began = [], time.monotonic()
    job.on_commit(lambda: spans.append(job._loop.batch.span))
    for x, y in job.steps(loader, epochs=epochs):
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x), y.flatten()))
        optimizer.step()
        scheduler.step()
    took = time.monotonic() - began

net.eval()
with torch.no_grad():
    x, y = data.tensors
    logits = net(x)
    loss, right = nn.functional.cross_entropy(logits, y.flatten()).item(), (logits.argmax(1) == y.flatten()).float()
noise = getattr(job._loop.batch, "noise", None)
end = {"loss": loss, "accuracy": right.mean().item(), "spans": spans, "seconds": took, "noise": noise}
torch.save(end, out / f"final-{os.getpid()}.pt")
