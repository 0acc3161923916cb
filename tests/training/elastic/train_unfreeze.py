"""A training script for the tests that unfreezes a layer and adds it to the optimizer while it trains.

``WHEN``: "between" two epochs, in the "body" by the step, in a "callback"; ``AT``: the epoch or the step, or a file of
this name in the folder; ``ONLY``: the worker that does so, without the others. ``NUMERICS`` and ``LOADER`` as in
train_options.py; ``PORTIONS``: joiners receive their state over several steps. While ``hold`` exists in the folder, no
rank computes a step.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic.state import portions, sender, transfer

if os.environ.get("PORTIONS"):
    portions.MIN_BYTES, transfer.SMALL_BYTES = 1, 200
    portions.SAMPLES = 8  # so that the samples of a tensor are small
    sender.STEP_SHARE = 0.0  # one portion from each sender in each step

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
when, at = os.environ.get("WHEN", "between"), int(os.environ.get("AT", "2"))
alone = os.environ.get("ONLY", os.environ["ELASTRAIN_WORKER"]) == os.environ["ELASTRAIN_WORKER"]
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(288, 6, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (288,), generator=generator)

with elastrain.join(numerics=os.environ.get("NUMERICS", "exact")) as job:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    net[0].requires_grad_(False)
    net[2].requires_grad_(False)
    optimizer = torch.optim.Adam(net[4].parameters(), lr=0.01)
    model = job.wrap(net, optimizer=optimizer)
    options = json.loads(os.environ.get("LOADER", "{}"))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=24, seed=3, **options)

    def unfreeze() -> None:
        if alone:
            net[2].requires_grad_(True)
            optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.003})

    if when == "callback":
        job.on_commit(lambda: unfreeze() if job.step == at else None)
    losses = {}
    job.on_commit(lambda: losses.update({job.step: job.loss}))
    for epoch in job.epochs(loader, epochs):
        if when == "between" and epoch == at:
            unfreeze()
        for x, y in job.steps(loader, epochs=epoch + 1):
            if not (out / "run-free").exists():
                time.sleep(delay)
            while job.step and (out / "hold").exists():  # not in the warm-up
                time.sleep(0.01)
            if (out / "at").exists():
                at = int((out / "at").read_text())
            if when == "body" and job.step == at:
                unfreeze()
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()

state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": job.step, "losses": losses}
torch.save(state, out / f"final-{os.getpid()}.pt")
