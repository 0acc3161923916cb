"""A training script for the tests whose loss is a mean over tokens: sequences of different lengths, some of them empty.

``LOADER`` and ``NUMERICS`` as in train_options.py. ``MEANS``: the worker that gives no count, or "second": each
worker, in its second micro-batch; ``AT``: from this step on. ``EMPTY``: all sequences of this step are empty.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import elastrain

generator = torch.Generator().manual_seed(1)
TOKENS = torch.randint(1, 11, (83, 12), generator=generator)
LENGTHS = torch.randint(0, 12, (83,), generator=generator)


class Sequences(Dataset):
    """Token 0 is padding."""

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return TOKENS[index] * (torch.arange(12) < LENGTHS[index])


def loss_of(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over the tokens that have a next one, and their number."""
    targets = tokens[:, 1:]
    logits = model(tokens[:, :-1])
    summed = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
    return summed, (targets != 0).sum()


if __name__ == "__main__":
    out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    without_count, at = os.environ.get("MEANS", ""), int(os.environ.get("AT", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with elastrain.join(numerics=os.environ.get("NUMERICS", "exact")) as job:
        net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 11)).double()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=9)
        model = job.wrap(net, optimizer=optimizer)
        job.track(scaler=scaler)
        losses, norms = {}, {}
        job.on_commit(lambda: losses.update({job.step: job.loss}))
        options = json.loads(os.environ.get("LOADER", "{}"))
        loader = job.dataloader(Sequences(), global_batch_size=16, seed=3, **options)
        second = False
        for tokens in job.steps(loader, epochs=epochs):
            if not (out / "run-free").exists():
                time.sleep(delay)
            if str(job.step) == os.environ.get("EMPTY"):
                tokens = torch.zeros_like(tokens)
            optimizer.zero_grad()
            loss, count = loss_of(model, tokens)
            alone = without_count == os.environ["ELASTRAIN_WORKER"] or (without_count == "second" and second)
            if alone and job.step >= at:
                job.backward(loss / count.clamp(min=1))
            else:
                job.backward(scaler.scale(loss), count=count)
            second = not job.synchronised
            scaler.unscale_(optimizer)
            norm = job.clip_grad_norm_(0.5)
            scaler.step(optimizer)
            scaler.update()
            if job.committed:
                norms[job.step + 1] = float(norm)

    torch.save({"model": net.state_dict(), "losses": losses, "norms": norms}, out / f"final-{os.getpid()}.pt")
