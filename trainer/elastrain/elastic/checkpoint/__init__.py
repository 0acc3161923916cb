"""Checkpoints in the tiers of a job: a job resumes from them when no worker holds the training state."""

from elastrain.elastic.checkpoint.division import ALONE, Cut, Grid, Writers
from elastrain.elastic.checkpoint.folder import Pace
from elastrain.elastic.checkpoint.keeper import CheckpointKeeper
from elastrain.elastic.checkpoint.kept import KeptState
from elastrain.elastic.checkpoint.levels import Level, levels_of
from elastrain.elastic.checkpoint.resume import Ranks
from elastrain.elastic.checkpoint.rules import Checkpoint
from elastrain.elastic.checkpoint.tier import StaleLineage, Tier, tier_at

__all__ = [
    "ALONE",
    "Checkpoint",
    "CheckpointKeeper",
    "Cut",
    "Grid",
    "KeptState",
    "Level",
    "Pace",
    "Ranks",
    "StaleLineage",
    "Tier",
    "Writers",
    "levels_of",
    "tier_at",
]
