"""A training script for the tests, configured by the environment.

``NUMERICS``; ``LOADER``, options of ``job.dataloader`` as JSON; ``SAMPLER``: buckets or weighted, instead of a shuffle,
or pairs of a labelled and an unlabelled set;
``RANDOM``: 1 for a float32 model with dropout on data that are augmented at random, 0 for a float64 model without;
``NORM``: sync for SyncBatchNorm; ``SEED`` of this process.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset, WeightedRandomSampler

import elastrain
from elastrain.data import LengthBuckets

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(int(os.environ["SEED"]))  # different on each rank: all ranks get the first rank's weights
random = os.environ["RANDOM"] == "1"
dtype = torch.float32 if random else torch.float64
width = int(os.environ.get("WIDTH", "64"))
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=dtype, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)


class Noisy(Dataset):
    def __len__(self) -> int:
        return len(inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs[index] + (0.1 * torch.randn(6) if random else 0), labels[index]


class Pairs(Dataset):
    """Each unlabelled sample with a labelled one."""

    def __len__(self) -> int:
        return len(inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        labelled = torch.randint(20, ())
        return torch.stack([inputs[labelled], inputs[index]]), labels[labelled]


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dim() == 2:
        return nn.functional.cross_entropy(model(x), y)
    return nn.functional.cross_entropy(model(x[:, 0]), y) + 0.5 * model(x[:, 1]).softmax(-1).pow(2).mean()


with elastrain.join(numerics=os.environ.get("NUMERICS", "exact")) as job:
    norm = nn.SyncBatchNorm(width) if os.environ.get("NORM") == "sync" else nn.Identity()
    dropout = nn.Dropout(0.2 if random else 0)
    net = nn.Sequential(nn.Linear(6, width), norm, dropout, nn.Tanh(), nn.Linear(width, 3)).to(dtype)
    model = job.wrap(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.99)
    job.track(optimizer=optimizer, scheduler=scheduler)
    losses, norms, largest = {}, {}, 0
    job.on_commit(lambda: losses.update({job.step: job.loss}))
    options = {"global_batch_size": 24, "seed": 3, **json.loads(os.environ["LOADER"])}
    if os.environ.get("SAMPLER") == "weighted":
        options["sampler"] = WeightedRandomSampler(1.0 + labels, num_samples=150)
    elif os.environ.get("SAMPLER") == "buckets":
        options |= {"global_batch_size": None, "batch_sampler": LengthBuckets([*range(1, 204)], max_tokens=900, seed=3)}
    loader = job.dataloader(Pairs() if os.environ.get("SAMPLER") == "pairs" else Noisy(), **options)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        largest = max(largest, len(y))
        optimizer.zero_grad()
        job.backward(loss_of(x, y))
        norm = job.clip_grad_norm_(0.5)
        optimizer.step()
        scheduler.step()
        if job.committed:
            norms[job.step + 1] = float(norm)

state = {
    "model": net.state_dict(),
    "step": job.step,
    "losses": losses,
    "norms": norms,
    "lr": scheduler.get_last_lr(),
    "largest": largest,
}
torch.save(state, out / f"final-{os.getpid()}.pt")
