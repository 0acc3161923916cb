"""The workload for stock torchrun with torch's distributed checkpoints (DCP): all ranks save together in the background
every few steps, and load the newest complete one when they start, in any world size.

``ENV_SHARDING``: ``none`` (DDP), ``all`` (FSDP2 over all ranks), or ``node`` (FSDP2 over a node's ranks; nodes
replicate each other: HSDP). As in ``train_torchrun`` the position in the data is part of the checkpoint. Each node is
one place in the step log: its first rank writes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from bench_harness import workload
from bench_harness.names import BATCH_PER_RANK
from bench_rescale.steplog import ENV_CHECKPOINT, ENV_CHECKPOINT_EVERY, ENV_SHARDING, StepLog

KEPT = 2
"""Complete checkpoints."""


class Checkpoints:
    """``step-N`` folders, of which those with metadata are complete: torch writes it last."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._folder = Path(os.environ[ENV_CHECKPOINT])
        self._group = dist.new_group(backend="gloo")  # its collectives would mix with those of training
        self._running: Any = None

    def load(self) -> tuple[int, int]:
        """The step and the position in the data with which training goes on."""
        state, place = self._state(0, 0), {"step": 0, "position": 0}
        newest: list[Path | None] = [next(iter(self._complete()), None)]
        dist.broadcast_object_list(newest)
        if newest[0] is not None:
            dcp.load(state, checkpoint_id=newest[0])
            place = state["place"]
            model, optimizer = state["model"], state["optimizer"]
            set_state_dict(self._model, self._optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return place["step"], place["position"]

    def save(self, step: int, position: int) -> None:
        """In the background; waits for the save before."""
        if self._running is not None:
            self._running.result()
        if dist.get_rank() == 0:
            for old in self._complete()[KEPT - 1 :]:
                shutil.rmtree(old)
        folder = self._folder / f"step-{step:09d}"
        self._running = dcp.async_save(self._state(step, position), checkpoint_id=folder, process_group=self._group)

    def _state(self, step: int, position: int) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "place": {"step": step, "position": position}}

    def _complete(self) -> list[Path]:
        """Newest first."""
        return sorted((path.parent for path in self._folder.glob("step-*/.metadata")), reverse=True)


def build(sharding: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """As ``ENV_SHARDING`` says."""
    world, nproc = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    if sharding == "none":
        net, optimizer = workload.build()
        return DistributedDataParallel(net), optimizer
    if sharding == "all":
        return workload.build_sharded(init_device_mesh("cpu", (world,)))
    shape, names = (world // nproc, nproc), ("replicate", "shard")
    return workload.build_sharded(init_device_mesh("cpu", shape, mesh_dim_names=names))


def main() -> None:
    parent = os.getppid()
    first = os.environ["LOCAL_RANK"] == "0"
    log = StepLog() if first else None
    dist.init_process_group("cpu:gloo")
    rank, world, nproc = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    model, optimizer = build(os.environ[ENV_SHARDING])
    inputs, labels = workload.data().tensors
    every, batch = int(os.environ[ENV_CHECKPOINT_EVERY]), BATCH_PER_RANK // nproc
    checkpoints = Checkpoints(model, optimizer)
    step, position = checkpoints.load()
    while os.getppid() == parent:  # the orphan of a killed agent must not train on
        if log is not None:
            log.begin(step)
        begin = position + rank * batch
        rows = torch.arange(begin, begin + batch) % workload.SAMPLES
        optimizer.zero_grad()
        workload.loss(model, inputs[rows], labels[rows]).backward()
        optimizer.step()
        step, position = step + 1, position + world * batch
        if log is not None:
            log.commit(step, world=world // nproc, rank=rank // nproc, first=begin, count=batch * nproc)
        if step % every == 0:
            checkpoints.save(step, position)


if __name__ == "__main__":
    main()
