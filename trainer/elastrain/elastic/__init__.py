"""The in-process runtime for training scripts. This part of elastrain imports torch."""

from elastrain.elastic.job import Job
from elastrain.elastic.start import join

__all__ = ["Job", "join"]
