"""elastrain: elastic data-parallel PyTorch training that rescales without restarting.

A training script needs one name from here::

    import elastrain

    with elastrain.join() as job:
        ...

Importing this package is cheap: torch is imported when :func:`join` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Job", "__version__", "join"]

if TYPE_CHECKING:
    from elastrain.elastic import Job, join


def __getattr__(name: str) -> Any:
    if name in ("Job", "join"):
        from elastrain import elastic

        return getattr(elastic, name)
    raise AttributeError(f"module 'elastrain' has no attribute {name!r}")
