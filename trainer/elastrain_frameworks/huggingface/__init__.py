"""Hugging Face's ``Trainer``, and those that are made from it, as TRL's (docs/integrations.md)."""

from elastrain_frameworks.huggingface.adapter import ElasticTrainer, ElasticTrainingArguments

__all__ = ["ElasticTrainer", "ElasticTrainingArguments"]
