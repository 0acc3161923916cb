"""The start of an agent: the zygote imports torch while the agent imports its own libraries and registers in etcd."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from elastrain.agent.process.forker import Zygote, launch


def run_agent(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run an agent whose ranks run ``command``; returns the exit code. Call it from the process's main thread."""
    zygote = launch(command, environ)
    try:
        from elastrain.agent.runtime import main

        return main(command, environ, zygote)
    finally:
        if isinstance(zygote, Zygote):
            zygote.close()
