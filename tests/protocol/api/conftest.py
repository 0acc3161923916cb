"""A stolen token of the operator."""

from stolen_token import stolen, worker

__all__ = ["stolen", "worker"]
