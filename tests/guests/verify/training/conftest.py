"""Tests of this tier are many processes and threads on few cores: torch's own threads would only wait in loops."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
