"""Lightning Fabric; its Trainer is in :mod:`elastrain_frameworks.lightning_trainer` (docs/integrations.md)."""

from elastrain_frameworks.lightning.fabric import ElasticStrategy

__all__ = ["ElasticStrategy"]
