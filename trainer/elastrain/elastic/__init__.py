"""The in-process runtime: what a training script uses. This is the part of elastrain that imports torch."""

from elastrain.elastic.job import Job, join

__all__ = ["Job", "join"]
