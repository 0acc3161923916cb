"""A guest beside the core: data sets in shards of other formats, and streams whose state can be kept.

``job.dataloader()`` takes them as any other data set.
"""

from elastrain_readers.resumable import Resumable
from elastrain_readers.shards import Shards, ShardShuffle

__all__ = ["Resumable", "ShardShuffle", "Shards"]
