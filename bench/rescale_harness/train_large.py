"""A large state and short steps: a gigabyte of frozen weights below the usual workload, as in fine-tuning.

The frozen part is looked up in, so that a step costs little more than without it; its gradients do not exist.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

from elastrain.elastic.state import portions
from rescale_harness import workload
from rescale_harness.train_elastrain import train

ENV_FROZEN = "BENCH_FROZEN_MIB"
ENV_WHOLE = "BENCH_WHOLE"
"""Anything: the state is given whole, whatever its size."""
TABLE_MIB = 64
ROWS = TABLE_MIB * 2**20 // 4 // workload.INPUTS


class Tuned(nn.Module):
    """Frozen tables, whose rows are added to the input, below a trained head."""

    def __init__(self, mebibytes: int, head: nn.Module) -> None:
        super().__init__()
        tables = max(1, mebibytes // TABLE_MIB)
        self.base = nn.ModuleList(
            nn.Embedding.from_pretrained(torch.rand(ROWS, workload.INPUTS) / tables) for _ in range(tables)
        )
        self.head = head

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``inputs`` of (batch, INPUTS), whose first elements also say which rows."""
        rows = (inputs[:, : len(self.base)].abs() * 1e4).long() % ROWS
        looked_up = [table(rows[:, i]) for i, table in enumerate(self.base)]
        answer: torch.Tensor = self.head(inputs + torch.stack(looked_up).sum(0))
        return answer


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    head, optimizer = workload.build()
    return Tuned(int(os.environ[ENV_FROZEN]), head), optimizer


if __name__ == "__main__":
    if os.environ.get(ENV_WHOLE):
        portions.MIN_BYTES = sys.maxsize  # no setting: nobody should have to know it
    train(build)
