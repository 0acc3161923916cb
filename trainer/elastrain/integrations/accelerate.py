"""As of :mod:`elastrain_frameworks.accelerate`."""

from elastrain_frameworks.accelerate import ElasticAccelerator

__all__ = ["ElasticAccelerator"]
