"""The module's command line: a worker's node."""

from __future__ import annotations

import os
import sys

from elastrain.api import names
from elastrain_launchers.horovod.node import Node
from elastrain_launchers.keeper import command_of


def main() -> int:
    """Run a node for the command; returns the exit code."""
    command = command_of(sys.argv[1:], "horovod")
    slots = os.environ.get("ELASTRAIN_HOROVOD_SLOTS") or "1"
    if not slots.isdecimal() or int(slots) < 1:
        sys.stderr.write(
            f"ELASTRAIN_HOROVOD_SLOTS={slots}: must be the number of processes in each worker, 1 or more\n"
        )
        return names.EXIT_USAGE
    return Node(command, int(slots)).keep(os.environ)


if __name__ == "__main__":
    sys.exit(main())
