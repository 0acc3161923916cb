"""Data of the scripts: a regression and its classes. The file $NAP holds the seconds that a batch takes."""

import os
import time

import torch
from torch.utils.data import Dataset


class Points(Dataset):
    def __init__(self, samples, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(samples, 12, generator=g, dtype=torch.float64)
        self.y = self.x[:, :3].sum(1)

    def __len__(self):
        return len(self.x)

    def __getitems__(self, indices):
        path = os.environ.get("NAP", "")
        time.sleep(float(open(path).read() or 0) if os.path.exists(path) else 0)
        return [(self.x[i], self.y[i]) for i in indices]
