"""A training script for the tests whose gradients outlive steps: ``KIND`` of zero_grad, ``WHERE`` it stands.

``plain(...)`` trains the same in one process of plain torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

STEPS, EVERY, BATCH = 26, 4, 12
KINDS = ("optimizer", "in place", "model", "none", "zero_", "foreach")
WHERES = ("end", "begin", "never", "some")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(203, 6, dtype=torch.float64, generator=generator),
        torch.randint(0, 3, (203,), generator=generator),
    )


def zero(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if kind == "optimizer":
        optimizer.zero_grad()
    elif kind == "in place":
        optimizer.zero_grad(set_to_none=False)
    elif kind == "model":
        model.zero_grad()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if kind == "none":
        for p in model.parameters():
            p.grad = None
    elif kind == "zero_":
        for gradient in gradients:
            gradient.zero_()
    elif kind == "foreach" and gradients:
        torch._foreach_zero_(gradients)


def body(
    step: int,
    kind: str,
    where: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    backward: Callable[[], None],
    clip: Callable[[], None],
) -> None:
    """One loop body: it applies the optimizer in each ``EVERY``-th step."""
    if where == "begin" and step % EVERY == 0:
        zero(kind, model, optimizer)
    backward()
    if (step + 1) % EVERY == 0:
        clip()
        optimizer.step()
        if where == "end":
            zero(kind, model, optimizer)
        if where == "some":  # of a part of the model only
            zero(kind, model[0], optimizer)


def plain(
    kind: str, where: str, order: Callable[[int], list[int]], *, several: bool = False, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The parameters at the end, and the gradients, of a run in plain torch. ``order(step)``: its samples."""
    model, (x, y) = net().to(dtype), data().tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        rows = order(step)

        def backward(rows: list[int] = rows) -> None:
            output = model(x[rows].to(dtype))
            (nn.functional.cross_entropy(output, y[rows]) / EVERY).backward(retain_graph=several)
            if several:
                (output.pow(2).mean() / EVERY).backward()

        body(step, kind, where, model, optimizer, backward, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.2))
    return end(model)


def end(model: nn.Module) -> dict[str, torch.Tensor]:
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    return {**model.state_dict(), **gradients}


def main() -> None:
    import elastrain

    out, delay = Path(sys.argv[1]), float(sys.argv[3])
    kind, where, several = os.environ["KIND"], os.environ["WHERE"], "SEVERAL" in os.environ
    torch.set_num_threads(1)
    with elastrain.join(numerics=os.environ.get("NUMERICS", "exact")) as job:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        wrapped = job.wrap(model, optimizer=optimizer)
        loader = job.dataloader(data(), global_batch_size=BATCH, seed=3, **json.loads(os.environ.get("LOADER", "{}")))
        warm = False
        for x, y in job.steps(loader, steps=STEPS):
            while warm and (out / "hold").exists():
                time.sleep(0.01)
            warm = True
            if not (out / "run-free").exists():
                time.sleep(delay)

            def backward(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
                output = wrapped(x)
                job.backward(nn.functional.cross_entropy(output, y) / EVERY, retain_graph=several)
                if several:
                    job.backward(output.pow(2).mean() / EVERY)

            if os.environ.get("ALONE") == os.environ["ELASTRAIN_WORKER"] and job.step == 2:
                optimizer.zero_grad()
            body(job.step, kind, where, model, optimizer, backward, lambda: job.clip_grad_norm_(0.2))
    torch.save({"step": job.step, **end(model)}, out / f"final-{os.getpid()}.pt")


if __name__ == "__main__":
    main()
