"""Lightning's ``Trainer`` (docs/integrations.md)."""

from elastrain_frameworks.lightning.trainer import ElasticTrainerStrategy

__all__ = ["ElasticTrainerStrategy"]
