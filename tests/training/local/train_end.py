"""A training script for the tests that has work after its training: rank 0 saves the model, slowly.

``SHAPE``: the work is ``inside`` the block of ``elastrain.join()``, or ``after`` it. A rank that saves writes the file
``saves-WORKER-PID`` and waits until ``run-free`` exists; then it writes ``model.pt``. ``EVALUATE``: all ranks evaluate
before. ``LOOPS``: the training has so many loops. ``RAISES``: the save raises. ``CHANGES``: the code before the save
changes the model and the schedule, on all ranks.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain

out, steps, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
worker, inside = os.environ["ELASTRAIN_WORKER"], os.environ["SHAPE"] == "inside"
loops = int(os.environ.get("LOOPS", "1"))
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(96, 6, dtype=torch.float64, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 3, (96,), generator=generator))
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def work() -> None:
    global net
    seen = job.evaluate(DataLoader(data, batch_size=24), lambda b: {"seen": len(b[1])}) if inside else {}
    if "CHANGES" in os.environ:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(2)
        scheduler.step()
    if job.rank == 0:
        state = {"model": net.state_dict(), "rate": optimizer.param_groups[0]["lr"]}
        torch.save(state, out / f"state-{worker}-{os.getpid()}.pt")
        (out / f"saves-{worker}-{os.getpid()}").touch()
        if "RAISES" in os.environ:
            raise ValueError("no space left for the model")
        while not (out / "run-free").exists():
            time.sleep(0.01)
        torch.save({**state, "step": job.step, "seen": seen}, out / "model.tmp")
        (out / "model.tmp").rename(out / "model.pt")


with elastrain.join() as job:
    model = job.wrap(net, optimizer=(optimizer := torch.optim.Adam(net.parameters(), lr=0.01)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    job.track(scheduler=scheduler)
    loader = job.dataloader(data, global_batch_size=12, seed=3)
    for loop in range(1, loops + 1):
        for x, y in job.steps(loader, steps=steps * loop // loops):
            time.sleep(delay)
            job.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    if inside:
        work()
if not inside:
    work()
print(f"the script of {worker} has ended")
