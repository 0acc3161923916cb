"""The command ``elastrain convert``."""
