"""A local job of fake ranks."""

from local_fixtures import manifest, run_job

__all__ = ["manifest", "run_job"]
