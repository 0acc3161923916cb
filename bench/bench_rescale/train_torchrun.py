"""The workload for stock torchrun, as its documentation recommends for elastic jobs: rank 0 saves a checkpoint every
few steps, every process loads it when it starts.

The position in the data is part of the checkpoint, so no sample is lost or repeated in the history that counts. (A
stock ``DistributedSampler`` would start its epoch anew; this is the kinder comparison.)
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench_harness import workload
from bench_harness.names import BATCH_PER_RANK
from bench_rescale.steplog import ENV_CHECKPOINT, ENV_CHECKPOINT_EVERY, StepLog


def main() -> None:
    parent = os.getppid()
    log = StepLog()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = workload.build()
    inputs, labels = workload.data().tensors
    path, every = Path(os.environ[ENV_CHECKPOINT]), int(os.environ[ENV_CHECKPOINT_EVERY])
    step = position = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, position = saved["step"], saved["position"]
    ddp = DistributedDataParallel(model)
    batch = BATCH_PER_RANK
    while os.getppid() == parent:  # the orphan of a killed agent must not train on
        log.begin(step)
        first = position + rank * batch
        rows = torch.arange(first, first + batch) % workload.SAMPLES
        optimizer.zero_grad()
        workload.loss(ddp, inputs[rows], labels[rows]).backward()
        optimizer.step()
        step, position = step + 1, position + world * batch
        log.commit(step, world=world, rank=rank, first=first, count=batch)
        if rank == 0 and step % every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step, "position": position}, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)


if __name__ == "__main__":
    main()
