"""The global generators in the runs of ``elastrain verify``: scripts that do not seed them begin alike."""

from __future__ import annotations

import random

import numpy as np
import torch

SEED = 0
"""That of :mod:`elastrain.agent.process.zygote` for the ranks."""


def begin() -> None:
    """At the import of elastrain, and again at ``elastrain.join()``."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
