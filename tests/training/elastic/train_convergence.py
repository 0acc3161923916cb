"""Trains a small model to a fixed number of epochs; ``TASK``: digits (SGD) or characters (AdamW, a language model)."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic import batching

out, epochs = Path(sys.argv[1]), int(sys.argv[2])
batching.CHANGE_SECONDS, batching.MEASURE_EVERY = 0.4, 2  # a short run
torch.set_num_threads(1)
torch.manual_seed(0)


class NextCharacter(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(size, 24), nn.GRU(24, 48, batch_first=True), nn.Linear(48, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(self.embed(x))[0]).flatten(0, 1)


def digits() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
    return data, net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


def characters() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([alphabet[c] for c in text])
    windows = codes.unfold(0, 33, 4)
    net = NextCharacter(len(alphabet))
    data = TensorDataset(windows[:, :-1].clone(), windows[:, 1:].clone())
    return data, net, torch.optim.AdamW(net.parameters(), lr=0.002)


with elastrain.join() as job:
    data, net, optimizer = {"digits": digits, "characters": characters}[os.environ["TASK"]]()
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=16, micro_batch_size=128, seed=1)
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
