"""The launcher's variables, hidden from frameworks that would form a process group of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from elastrain.api import names

_LAUNCHED = (names.ENV_LOCAL_RANK, "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE")


@contextmanager
def single_process() -> Iterator[None]:
    """Within it a framework finds a single process: it takes the agent's ``LOCAL_RANK`` for that of torchrun."""
    hidden = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
