"""Lightning's ``Trainer`` (docs/integrations.md)."""

from elastrain.integrations.lightning.trainer import ElasticTrainerStrategy

__all__ = ["ElasticTrainerStrategy"]
