"""As of :mod:`elastrain_frameworks.lightning`."""

from elastrain_frameworks.lightning import ElasticStrategy

__all__ = ["ElasticStrategy"]
