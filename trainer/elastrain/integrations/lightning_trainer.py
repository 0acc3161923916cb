"""As of :mod:`elastrain_frameworks.lightning_trainer`."""

from elastrain_frameworks.lightning_trainer import ElasticTrainerStrategy

__all__ = ["ElasticTrainerStrategy"]
