"""The data of each step (``order``), how it reaches a rank (``cursor``, ``loader``), and the proof (``audit``).

Scripts may import the samplers from here, and :class:`ElasticIterable` and :class:`Replayed`, for data that comes in a
sequence.
"""

from elastrain.data.samplers import BatchSampler, Drawn, InOrder, LengthBuckets, Sampler, Shuffled, Weighted
from elastrain.data.stream import ElasticIterable, Replayed

__all__ = [
    "BatchSampler",
    "Drawn",
    "ElasticIterable",
    "InOrder",
    "LengthBuckets",
    "Replayed",
    "Sampler",
    "Shuffled",
    "Weighted",
]
