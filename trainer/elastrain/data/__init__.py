"""The data of each step (``order``), how it reaches a rank (``cursor``, ``loader``), and the proof (``audit``).

Scripts may import :class:`ElasticIterable` and :class:`Replayed` from here, for data that comes in a sequence.
"""

from elastrain.data.stream import ElasticIterable, Replayed

__all__ = ["ElasticIterable", "Replayed"]
