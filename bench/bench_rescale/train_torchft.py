"""The workload for torchft, with live recovery from a healthy peer: fault-tolerant DDP, as its README recommends; with
``ENV_SHARDING`` FSDP2 over the ranks of a node, whose gradients torchft sums over the nodes (HSDP), as in its test.

Its sampler has a fixed number of shards. Each node that ever starts has one of its own here (the kinder comparison: no
two nodes read the same samples); a process that starts again begins its shard anew, and a step that is not committed
has consumed its samples, as in torchft's own example. Each node is one place in the step log: its first rank writes.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from bench_harness import workload
from bench_harness.names import BATCH_PER_RANK
from bench_rescale.steplog import ENV_NODE, ENV_SHARDING, ENV_SHARDS, StepLog

EPOCH = 200_000


class Indices(Dataset[int]):
    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> int:
        return index


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """As ``ENV_SHARDING`` says."""
    if os.environ[ENV_SHARDING] == "none":
        return workload.build()
    dist.init_process_group("cpu:gloo")
    return workload.build_sharded(init_device_mesh("cpu", (dist.get_world_size(),)))


def parts(state: dict[str, Any]) -> dict[str, Any]:
    """This rank's parts of sharded tensors: torchft sends the values of a tensor only."""
    local: dict[str, Any] = pytree.tree_map_only(DTensor, DTensor.to_local, state)
    return local


def sharded(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """The opposite. The layers of the workload divide evenly."""
    if not isinstance(model, FSDPModule):
        return state
    mesh = next(model.parameters()).device_mesh

    def placed(value: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(value, mesh, [Shard(0)]) if value.dim() else value

    whole: dict[str, Any] = pytree.tree_map_only(torch.Tensor, placed, state)
    return whole


def over_nodes(manager: Manager, model: nn.Module) -> nn.Module:
    """``model``, whose gradients ``manager`` sums over the nodes."""
    if not isinstance(model, FSDPModule):
        return DistributedDataParallel(manager, model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(lambda gradients: manager.allreduce(gradients).wait())
    return model


def main() -> None:
    parent = os.getppid()
    rank, nproc = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = StepLog() if rank == 0 else None
    shards = int(os.environ[ENV_SHARDS])
    shard = int(os.environ[ENV_NODE]) % shards
    model, optimizer = build()
    inputs, labels = workload.data().tensors

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(sharded(state["model"], model))
        optimizer.load_state_dict(sharded(state["optimizer"], model))

    def save() -> dict[str, Any]:
        return {"model": parts(model.state_dict()), "optimizer": parts(optimizer.state_dict())}

    timeout = timedelta(seconds=int(os.environ["TORCHFT_TIMEOUT_SEC"]))
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), min_replica_size=1, load_state_dict=load, state_dict=save,
        replica_id=f"bench_{shard}", timeout=timeout,
    )  # fmt: skip
    averaged = over_nodes(manager, model)
    managed = Optimizer(manager, optimizer)
    sampler = DistributedSampler(
        Indices(), replica_rank=shard, num_replica_groups=shards, group_rank=0, num_replicas=1, shuffle=False
    )
    mine, position, batch = list(sampler), 0, BATCH_PER_RANK // nproc
    while os.getppid() == parent:  # the orphan of a killed agent must not train on
        before = manager.current_step()
        if log is not None:
            log.begin(before)
        begin = position + rank * batch
        rows = torch.tensor([mine[i % len(mine)] for i in range(begin, begin + batch)]) % workload.SAMPLES
        managed.zero_grad()
        workload.loss(averaged, inputs[rows], labels[rows]).backward()
        managed.step()
        if log is not None and manager.current_step() > before:
            world, count = manager.num_participants(), batch * nproc
            log.commit(manager.current_step(), world=world, rank=shard, first=position, count=count)
        position += batch * nproc


if __name__ == "__main__":
    main()
