"""A local job of fake ranks."""

import contextlib

from local_fixtures import manifest

with contextlib.suppress(ImportError):  # its first import on a machine starts a process, which finds the fonts
    import matplotlib.font_manager  # noqa: F401

__all__ = ["manifest"]
