"""The workload for elastrain. Checkpoints, joiners' state and the order of the data are the runtime's business."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import elastrain
from rescale_harness import workload
from rescale_harness.steplog import StepLog

EPOCHS = 1_000_000
"""More than anybody waits for: the benchmark ends the run."""


def train(build: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]) -> None:
    """Train what ``build`` makes on the workload's data until somebody ends it, logging each step."""
    log = StepLog()
    with elastrain.join() as job:
        net, optimizer = build()
        model = job.wrap(net)
        job.track(optimizer=optimizer)
        loader = job.dataloader(workload.data(), global_batch_size=workload.GLOBAL_BATCH)
        for i, (inputs, labels) in enumerate(job.steps(loader, epochs=EPOCHS)):
            if i > 0:  # the first execution in a process is a warm-up and no step
                log.begin(job.step)
            optimizer.zero_grad()
            job.backward(workload.loss(model, inputs, labels))
            optimizer.step()
            if job.committed:
                log.commit(job.step + 1, world=job.world_size, rank=job.rank)


if __name__ == "__main__":
    train(workload.build)
