"""On a fresh checkout Python compiles all that a collection imports: 16 of its 23 s of CPU time.

Processes that begin at once would compile the same at once. So every second one begins at the other end: it finds
compiled what the others have begun with, and they find what it has.
"""

from __future__ import annotations

import importlib
import os

import pytest

OTHER_END = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579" and "ELASTRAIN_TESTS_STARTED" in os.environ
"""Whether this process is one of those, in a run of all tests (``make test``)."""

if OTHER_END:
    importlib.import_module("torch._dynamo")  # half of what all tests import


def turned(config: pytest.Config) -> None:
    """Collect the last folders first."""
    if OTHER_END:
        config.args.reverse()
