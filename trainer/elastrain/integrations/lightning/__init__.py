"""Lightning Fabric; its Trainer is in :mod:`elastrain.integrations.lightning_trainer` (docs/integrations.md)."""

from elastrain.integrations.lightning.fabric import ElasticStrategy

__all__ = ["ElasticStrategy"]
