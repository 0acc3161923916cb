"""Durable checkpoints on a volume: what a job resumes from when every worker is gone."""

from elastrain.checkpoint.pace import Pace
from elastrain.checkpoint.policy import due
from elastrain.checkpoint.volume import Checkpoint, CheckpointVolume, StaleLineage

__all__ = ["Checkpoint", "CheckpointVolume", "Pace", "StaleLineage", "due"]
