"""The data of each step (``order``), how it reaches a rank (``cursor``, ``loader``), and the log of it (``audit``).

Scripts may import from here: samplers, and the contract and adapters for data in a sequence.
"""

from elastrain.data.sampling.samplers import (
    BatchSampler,
    Drawn,
    InOrder,
    LengthBuckets,
    OwnShuffle,
    Sampler,
    Shuffled,
    Weighted,
)
from elastrain.data.stream import ElasticIterable, Replayed

__all__ = [
    "BatchSampler",
    "Drawn",
    "ElasticIterable",
    "InOrder",
    "LengthBuckets",
    "OwnShuffle",
    "Replayed",
    "Sampler",
    "Shuffled",
    "Weighted",
]
