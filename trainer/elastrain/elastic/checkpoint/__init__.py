"""Durable checkpoints on a volume: what a job resumes from when every worker is gone."""

from elastrain.elastic.checkpoint.pace import Pace
from elastrain.elastic.checkpoint.schedule import due
from elastrain.elastic.checkpoint.volume import Checkpoint, CheckpointVolume, StaleLineage

__all__ = ["Checkpoint", "CheckpointVolume", "Pace", "StaleLineage", "due"]
