"""The one workload that every system trains: a perceptron of 9.2 million parameters on synthetic data, with Adam.

Model and optimizer state are 110 MB: large enough that moving them is seen, small enough for a laptop.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

INPUTS, HIDDEN, CLASSES = 1024, 2176, 10
SAMPLES = 1024
BATCH_PER_RANK = 16
"""Samples of one rank in a step at :data:`START_RANKS` ranks."""
START_RANKS = 2
GLOBAL_BATCH = BATCH_PER_RANK * START_RANKS
"""Samples of a step where the system keeps it constant."""


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same in every process. One thread per rank: cores are shared."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, INPUTS),
        nn.ReLU(),
        nn.Linear(INPUTS, CLASSES),
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def data() -> TensorDataset:
    """``SAMPLES`` pairs of a (INPUTS,) float32 vector and a class, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean loss over a batch, a scalar."""
    return nn.functional.cross_entropy(model(inputs), labels)
