"""Runs a command that dies with the process that started it: ``python tether.py SIGNAL PARENT_PID CMD...``.

This is a separate program because the usual way (``preexec_fn``) forks a process that has threads, and gRPC's fork
handlers then abort the child occasionally. Without it Python starts children by vfork, which runs no handlers. This
program requests the kernel's parent-death signal, which an exec keeps, and becomes the command. It costs about 20 ms.
Linux only, as are the pods.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
EXIT_LATE = 75
EXIT_NO_COMMAND = 127


def tethered(command: Sequence[str], signum: int) -> list[str]:
    """``command`` extended such that it gets ``signum`` when this process dies. A thread that outlives the command must
    start it: the kernel treats that thread as the parent."""
    return [sys.executable, "-I", "-S", __file__, str(int(signum)), str(os.getpid()), *command]


def die_with_parent(signum: int, parent: int) -> None:
    """Request ``signum`` from the kernel for the end of the thread that forked this process. ``parent``: that thread's
    process; if it has already ended, this process ends too. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent died before the request
        os._exit(EXIT_LATE)


def _main(signum: int, parent: int, command: list[str]) -> None:
    die_with_parent(signum, parent)
    try:
        os.execvp(command[0], command)  # noqa: S606 - runs without a shell
    except OSError as error:
        sys.stderr.write(f"command: {command[0]!r} cannot be executed: {error.strerror}\n")
        sys.exit(EXIT_NO_COMMAND)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
