"""Trains a small model on handwritten digits, with SGD, up to a progress of ``UNTIL`` effective samples.

``SEED``: of the model and of the order of the data.
"""

import math
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain_batches import chosen
from elastrain_resource.sizing.speedup import Batches

out, epochs = Path(sys.argv[1]), int(sys.argv[2])
chosen.CHANGE_SECONDS, chosen.REVIEW_SECONDS = 0, 0  # a short run
until, seed = float(os.environ["UNTIL"]), int(os.environ["SEED"])
torch.set_num_threads(1)
torch.manual_seed(seed)


def choose(*, factor: int, batches: Batches, **_: object) -> int:
    """By the noise alone, so that the speed of the machine does not matter: a batch of up to the noise scale."""
    most = min(int(batches.noise or 0), batches.most) // batches.base
    return max(min(2 * factor, most), 1)


chosen.choose = choose


def digits() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
    return data, net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


with elastrain.join() as job:
    data, net, optimizer = digits()
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=32, micro_batch_size=16, seed=seed)
    scheduler = torch.optim.lr_scheduler.LambdaLR(  # by progress, not by the number of steps
        optimizer, lambda _: 0.5 + 0.5 * math.cos(math.pi * min(job.effective_samples / until, 1.0))
    )
    job.track(scheduler=scheduler)
    spans = []
    job.on_commit(lambda: spans.append(job._loop.batch.span))
    for x, y in job.steps(loader, epochs=epochs):
        if job.effective_samples >= until:
            job.stop()
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x), y.flatten()))
        optimizer.step()
        scheduler.step()

net.eval()
with torch.no_grad():
    x, y = data.tensors
    logits = net(x)
    loss, right = nn.functional.cross_entropy(logits, y.flatten()).item(), (logits.argmax(1) == y.flatten()).float()
noise = getattr(job._loop.batch, "noise", None)
end = {
    "loss": loss,
    "accuracy": right.mean().item(),
    "spans": spans,
    "noise": noise,
    "effective": job.effective_samples,
}
torch.save(end, out / f"final-{os.getpid()}.pt")
