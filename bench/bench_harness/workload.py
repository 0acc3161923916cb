"""The workload of most benchmarks: a perceptron of 9.2 million parameters on synthetic data, with Adam.

Model and optimizer state are 110 MB. ``ENV_STATE_MIB`` puts frozen tables below it, as in fine-tuning: the state grows,
a step hardly, as it reads one of them. ``ENV_DEVICE`` chooses the device. ``ENV_HIDDEN`` makes the model narrower; with
``ENV_PACE`` each sample also takes the time of an accelerator, so that a few cores carry many ranks.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from bench_harness.names import BATCH_PER_RANK, ENV_DEVICE, ENV_HIDDEN, ENV_PACE, ENV_RANKS, ENV_STATE_MIB

INPUTS, HIDDEN, CLASSES = 1024, int(os.environ.get(ENV_HIDDEN, "2176")), 10
WIDTHS = (INPUTS, HIDDEN, HIDDEN, INPUTS, CLASSES)
PACE = float(os.environ.get(ENV_PACE, "0"))
SAMPLES = 1024
GLOBAL_BATCH = BATCH_PER_RANK * int(os.environ.get(ENV_RANKS, "2"))
"""Samples of a step where the system keeps it constant."""
TABLE_MIB = 64
TABLE_ROWS = TABLE_MIB * 2**20 // 4 // INPUTS


class FineTuned(nn.Module):
    """Frozen tables below a trained head, of which a step reads the first (and gathers it, if it is sharded)."""

    def __init__(self, tables: int, head: nn.Module, place: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.base = nn.ModuleList(
            place(nn.Embedding.from_pretrained(torch.rand(TABLE_ROWS, INPUTS))) for _ in range(tables)
        )
        self.head = head

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``inputs`` of (batch, INPUTS), whose first element also chooses the row. Returns (batch, CLASSES)."""
        rows = (inputs[:, 0].abs() * 1e4).long() % TABLE_ROWS
        answer: torch.Tensor = self.head(inputs + self.base[0](rows))
        return answer


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same in every process. One thread per rank: ranks share the cores."""
    return _trained(_model(lambda layer: layer.to(device())))


def build_sharded(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same, each layer sharded by FSDP2 over ``mesh`` as soon as it is made: no rank ever holds a whole model."""

    def place(layer: nn.Module) -> nn.Module:
        return fully_shard(layer.to(device()), mesh=mesh)

    return _trained(place(_model(place)))


def _model(place: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """``place(layer)``: where the layer is to be."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [place(nn.Linear(inputs, outputs)) for inputs, outputs in itertools.pairwise(WIDTHS)]
    head = nn.Sequential(*itertools.chain.from_iterable((layer, nn.ReLU()) for layer in layers[:-1]), layers[-1])
    tables = int(os.environ.get(ENV_STATE_MIB, "0")) // TABLE_MIB
    return FineTuned(tables, head, place) if tables else head


def _trained(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def device() -> torch.device:
    return torch.device(os.environ.get(ENV_DEVICE, "cpu"))


def data() -> TensorDataset:
    """``SAMPLES`` pairs of a (INPUTS,) float32 vector and a class, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean loss over a batch, a scalar."""
    there = device()
    if PACE:
        time.sleep(PACE * len(inputs))
    return nn.functional.cross_entropy(model(inputs.to(there)), labels.to(there))
