"""Memory of the host that is there at once.

The first write to a page of new memory costs a page fault, which on a virtual machine takes as long as to send and
receive twice as many bytes: a joiner's state, in new memory, came at half the pace of the network. And glibc gives
large blocks back to the system as they are freed, only to ask for them again. By luck of how its heap lies, that makes
a rank fault anew in every step, for a third of the step's time. So a rank whose model is on the CPU keeps what it has
had (:func:`keep_freed`), and one that waits to join touches beforehand what it will need (:func:`touch`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_FROM = 32 * 2**20
"""Larger blocks glibc always maps and unmaps (``DEFAULT_MMAP_THRESHOLD_MAX``)."""
_NEVER = 2**31 - 1
_OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed(environ: Mapping[str, str]) -> bool:
    """Have malloc keep what this process frees, up to 2 GiB, for its next use; what the user has set in ``environ``
    stands.

    Returns whether it does. Not without glibc; and where another allocator was preloaded, that is not touched.
    """
    if any(name in environ for name in _OWN_CHOICE):
        return False
    with suppress(AttributeError, OSError):
        mallopt = _libc().mallopt
        return bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
    return False


def touch(nbytes: int) -> None:
    """Have so many bytes ready, where what is freed is kept, for what this thread allocates next in blocks of less than
    32 MiB: at most half of what there is (:func:`left`), as it may turn out that they are not needed.

    In one run: blocks that are allocated, and freed, with nothing in between make one.
    """
    nbytes = min(nbytes, left() // 2)
    libc = _libc()
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks: list[tuple[int, int]] = []
    while nbytes > 0:
        size = min(nbytes, _MAPPED_FROM // 2)
        if (address := libc.malloc(size)) is None:
            break  # then it will not be there later either, and torch says so
        blocks.append((address, size))
        nbytes -= size
    for address, size in blocks:
        ctypes.memset(address, 0, size)
    for address, _ in blocks:
        libc.free(address)


def left(root: Path = Path("/")) -> int:
    """Bytes that this machine can give, and that this container may still take (cgroup v2; without a limit, or where it
    cannot be read, the machine's count). Raises ``OSError`` where there is no ``/proc``.
    """
    machine = int(_table(root / "proc/meminfo")["MemAvailable:"]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = int(_table(group / "memory.stat")["inactive_file"])  # the kernel drops that first
    except (OSError, ValueError):  # ValueError: "max"
        return machine
    return max(0, min(machine, limit - used + cached))


def _table(path: Path) -> dict[str, str]:
    """First and second word of each line."""
    return {line[0]: line[1] for text in path.read_text().splitlines() if len(line := text.split()) > 1}


def _libc() -> Any:
    return ctypes.CDLL(None)
