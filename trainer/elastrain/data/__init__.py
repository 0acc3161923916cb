"""The data of each step (``order``), how it reaches a rank (``cursor``, ``loader``), and the proof (``audit``).

Scripts may import from here: samplers, data sets in shards, and the contract and adapters for data in a sequence.
"""

from elastrain.data.resumable import Resumable
from elastrain.data.samplers import BatchSampler, Drawn, InOrder, LengthBuckets, Sampler, Shuffled, Weighted
from elastrain.data.shards import Shards, ShardShuffle
from elastrain.data.stream import ElasticIterable, Replayed

__all__ = [
    "BatchSampler",
    "Drawn",
    "ElasticIterable",
    "InOrder",
    "LengthBuckets",
    "Replayed",
    "Resumable",
    "Sampler",
    "ShardShuffle",
    "Shards",
    "Shuffled",
    "Weighted",
]
