"""Checkpoints in the tiers of a job: a job resumes from them when no worker holds the training state."""

from elastrain.elastic.checkpoint.division import ALONE, Cut, Grid, Writers
from elastrain.elastic.checkpoint.folder import Pace
from elastrain.elastic.checkpoint.keeper import CheckpointKeeper
from elastrain.elastic.checkpoint.levels import Level, kept_memory, levels_of, node_memory
from elastrain.elastic.checkpoint.resume import Ranks
from elastrain.elastic.checkpoint.rules import Checkpoint
from elastrain.elastic.checkpoint.tier import StaleLineage, Tier, tier_at

__all__ = [
    "ALONE",
    "Checkpoint",
    "CheckpointKeeper",
    "Cut",
    "Grid",
    "Level",
    "Pace",
    "Ranks",
    "StaleLineage",
    "Tier",
    "Writers",
    "kept_memory",
    "levels_of",
    "node_memory",
    "tier_at",
]
