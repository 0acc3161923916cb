"""elastrain: elastic data-parallel PyTorch training that rescales without restarting.

A training script needs one name of this package::

    import elastrain

    with elastrain.join() as job:
        ...

The import is cheap: the first use of :func:`join` imports torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from elastrain.api import names

__version__ = "0.1.0"
__all__ = ["Job", "__version__", "join"]

if TYPE_CHECKING:
    from elastrain.elastic import Job, join


if '"mode":"reference"' in os.environ.get(names.ENV_VERIFY, ""):  # a script may make its model before the join
    from elastrain import guests

    guests.load("elastrain_verify.rank.seeds").begin()


def __getattr__(name: str) -> Any:
    if name == "join" and names.ENV_VERIFY in os.environ:  # a run of `elastrain verify`
        from elastrain import guests

        return guests.load("elastrain_verify.rank.watched").join
    if name in ("Job", "join"):
        from elastrain import elastic

        return getattr(elastic, name)
    raise AttributeError(f"module 'elastrain' has no attribute {name!r}")
