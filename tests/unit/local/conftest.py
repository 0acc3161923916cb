"""A local job of fake ranks."""

from local_fixtures import manifest

__all__ = ["manifest"]
