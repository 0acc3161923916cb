"""An agent from its very beginning: the zygote starts to import torch before the agent imports its own libraries, so
that the two, and the registration in etcd, go on side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from elastrain.agent.process.forker import Zygote, launch


def run_agent(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Be an agent whose ranks run ``command``; returns the exit code. Call it from the process's main thread."""
    zygote = launch(command, environ)
    try:
        from elastrain.agent.runtime import main

        return main(command, environ, zygote)
    finally:
        if isinstance(zygote, Zygote):
            zygote.close()
