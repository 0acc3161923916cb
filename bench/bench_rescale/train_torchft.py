"""The workload for torchft: fault-tolerant DDP, live recovery from a healthy peer, as its README recommends.

Its sampler has a fixed number of shards. Each node that ever starts has one of its own here (the kinder comparison: no
two nodes read the same samples); a process that starts again begins its shard anew, and a step that is not committed
has consumed its samples, as in torchft's own example.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch.utils.data import Dataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from bench_harness import workload
from bench_harness.names import BATCH_PER_RANK
from bench_rescale.steplog import ENV_NODE, ENV_SHARDS, StepLog

EPOCH = 200_000


class Indices(Dataset[int]):
    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    parent = os.getppid()
    log = StepLog()
    shards = int(os.environ[ENV_SHARDS])
    shard = int(os.environ[ENV_NODE]) % shards
    model, optimizer = workload.build()
    inputs, labels = workload.data().tensors

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    timeout = timedelta(seconds=int(os.environ["TORCHFT_TIMEOUT_SEC"]))
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), min_replica_size=1, load_state_dict=load, state_dict=save,
        replica_id=f"bench_{shard}", timeout=timeout,
    )  # fmt: skip
    ddp = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)
    sampler = DistributedSampler(
        Indices(), replica_rank=shard, num_replica_groups=shards, group_rank=0, num_replicas=1, shuffle=False
    )
    mine, position, batch = list(sampler), 0, BATCH_PER_RANK
    while os.getppid() == parent:  # the orphan of a killed agent must not train on
        before = manager.current_step()
        log.begin(before)
        rows = torch.tensor([mine[i % len(mine)] for i in range(position, position + batch)]) % workload.SAMPLES
        managed.zero_grad()
        workload.loss(ddp, inputs[rows], labels[rows]).backward()
        managed.step()
        if manager.current_step() > before:
            log.commit(
                manager.current_step(), world=manager.num_participants(), rank=shard, first=position, count=batch
            )
        position += batch


if __name__ == "__main__":
    main()
