"""Durable checkpoints on a volume: a job resumes from them when every worker is gone."""

from elastrain.elastic.checkpoint.keeper import CheckpointKeeper
from elastrain.elastic.checkpoint.pace import Pace
from elastrain.elastic.checkpoint.volume import Checkpoint, CheckpointVolume, StaleLineage

__all__ = ["Checkpoint", "CheckpointKeeper", "CheckpointVolume", "Pace", "StaleLineage"]
