"""The rank of ``bench/convergence.py``: trains one of two models, and writes the held-out loss over the progress."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import elastrain
from bench_convergence.names import ENV, Case
from elastrain.sizing.speedup import Batches
from elastrain_batches import chosen

CHANGE_STEPS = 50
"""Steps from one change of the batch to the next, in place of 30 s."""
WARM_UP = 40
"""Batches of the script; then the learning rate is constant."""
EXAMPLES = Path(__file__).parents[2] / "examples"


class Task(NamedTuple):
    data: Dataset[Any]
    net: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Any], torch.Tensor]
    held_out: Any


def digits(rate: float, samples: int) -> Task:
    """``examples/01-digits`` with SGD."""
    script = _script("01-digits")
    train, images, labels = script.digits()
    net = script.network()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return Task(train, net, torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), loss, (images, labels))


def language(rate: float, samples: int) -> Task:
    """``examples/02-storm`` at half of its width."""
    script = _script("02-storm")
    text = script.standard_library()
    net = script.LanguageModel(width=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    held_out = torch.stack(list(script.Windows(text, 200, shift=0.5)))
    return Task(script.Windows(text, samples), net, optimizer, script.loss_of, held_out)


class ByNoise:
    """The largest batch of up to the noise scale, so that the speed of the machine does not matter."""

    def __init__(self) -> None:
        self._steps = 0

    def __call__(self, *, factor: int, batches: Batches, **_: object) -> int:
        self._steps += 1
        if self._steps % CHANGE_STEPS:
            return factor
        most = min(int(batches.noise or 0), batches.most) // batches.base
        return max(min(2 * factor, most), 1)


def main() -> None:
    case = Case.model_validate_json(os.environ[ENV])
    chosen.CHANGE_SECONDS, chosen.REVIEW_SECONDS = 0, 0  # a short run
    vars(chosen)["choose"] = ByNoise()
    torch.set_num_threads(1)
    torch.manual_seed(case.seed)
    task = {"digits": digits, "language": language}[case.task](case.rate, case.samples)
    points: list[list[float | None]] = []

    with elastrain.join() as job:
        model = job.wrap(task.net)
        loader = job.dataloader(
            task.data, global_batch_size=case.base, micro_batch_size=max(case.base // 2, 1), seed=case.seed
        )
        end = case.epochs * len(loader)
        warm = torch.optim.lr_scheduler.LambdaLR(task.optimizer, lambda step: min((step + 1) / WARM_UP, 1.0))
        job.track(optimizer=task.optimizer, schedule=warm)
        updates = 0

        def look() -> None:
            nonlocal updates
            updates += 1
            if job.effective_samples < len(points) * case.every and job.step < end:
                return
            with torch.no_grad():
                loss = task.loss(task.net, task.held_out).item()
            samples = job.step / len(loader) * case.samples
            noise = getattr(job._loop.batch, "noise", None)
            points.append([job.effective_samples, loss, samples, updates, noise])

        job.on_commit(look)
        for batch in job.steps(loader, epochs=case.epochs):
            task.optimizer.zero_grad()
            job.backward(task.loss(model, batch))
            task.optimizer.step()
            warm.step()
        Path(case.out).write_text(json.dumps(points))


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), EXAMPLES / name / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
