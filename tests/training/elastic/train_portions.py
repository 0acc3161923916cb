"""A training script for the tests, in which a state of 16 MB counts as large."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic.state import portions, sender

portions.MIN_BYTES = 2**18
if os.environ.get("ONE_BY_ONE"):
    sender.STEP_SHARE = 0.0  # one portion from each giver in each step

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("SEED", "0")))
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 512).requires_grad_(False)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(5)))
        self.head = nn.Linear(512, 3)
        if os.environ.get("FOLLOWER"):  # a large tensor that other code than the optimizer changes
            self.follower = nn.Parameter(torch.zeros(512, 512), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(x))
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.head(x)

    def follow(self) -> None:
        if os.environ.get("FOLLOWER"):
            with torch.no_grad():
                self.follower.lerp_(self.layers[4].weight, 0.1)


with elastrain.join() as job:
    net = Model()
    model = job.wrap(net)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.001)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    job.track(optimizer=optimizer, scheduler=scheduler)
    commits, bodies, forwards = [], [], []
    net.register_forward_hook(lambda *_: forwards.append(job.step))
    job.on_commit(lambda: commits.append(job.step))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3)
    ends = [epochs] if not os.environ.get("NESTED") else range(1, epochs + 1)
    for x, y in (batch for end in ends for batch in job.steps(loader, epochs=end)):
        if not (out / "run-free").exists():
            time.sleep(delay)
        if os.environ.get("RATE"):  # by step, as in scripts without a scheduler
            optimizer.param_groups[0]["lr"] = 0.001 / (1 + job.step)
        optimizer.zero_grad()
        forwards.clear()
        logits = model(x)
        torch.multinomial(logits.softmax(dim=1), 1)  # fails on what is not a number
        job.backward(nn.functional.cross_entropy(logits, y))
        bodies.append((job.step, job.committed, len(forwards)))
        if not job.committed and job.synchronised and len(bodies) > 1:
            job.stop()  # nobody may listen to a rank of which a part is missing
        job.clip_grad_norm_(0.5)
        optimizer.step()
        scheduler.step()
        if job.committed:
            net.follow()

state = {
    "model": net.state_dict(),
    "optimizer": optimizer.state_dict()["state"],
    "step": job.step,
    "commits": commits,
    "bodies": bodies,
    "lr": scheduler.get_last_lr(),
}
torch.save(state, out / f"final-{os.getpid()}.pt")
