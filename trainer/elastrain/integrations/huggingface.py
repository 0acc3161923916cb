"""As of :mod:`elastrain_frameworks.huggingface`."""

from elastrain_frameworks.huggingface import ElasticTrainer, ElasticTrainingArguments

__all__ = ["ElasticTrainer", "ElasticTrainingArguments"]
