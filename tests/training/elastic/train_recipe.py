"""A training script for the tests with the additions of the recipes: loss scaling, clipping by torch itself, an average
of the weights, schedules by step and by epoch, frozen statistics, a loop over epochs."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).double()
    net.eval()  # it trains with frozen statistics
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model = job.wrap(net, optimizer=optimizer)
    by_step = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.99)
    by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=9)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    job.track(by_step=by_step, by_epoch=by_epoch, scaler=scaler, average=average)
    job.on_commit(by_step.step)
    losses = {}
    job.on_commit(lambda: losses.update({job.step: job.loss}))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=24, micro_batch_size=5, seed=3)
    between = []
    for epoch in job.epochs(loader, epochs) if os.environ.get("EPOCHS") else range(epochs):
        for x, y in job.steps(loader, epochs=epoch + 1):
            if not (out / "run-free").exists():
                time.sleep(delay)
            loss = nn.functional.cross_entropy(model(x), y)
            job.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(net)
            net.zero_grad()
        by_epoch.step()
        between.append((epoch, job.rank, job.step))
        (out / f"epochs-{os.getpid()}").write_text(json.dumps(between))

state = {
    "model": net.state_dict(),
    "average": average.state_dict(),
    "scaler": scaler.state_dict(),
    "optimizer": optimizer.state_dict()["state"],
    "lr": optimizer.param_groups[0]["lr"],
    "losses": losses,
    "step": job.step,
}
torch.save(state, out / f"final-{os.getpid()}.pt")
