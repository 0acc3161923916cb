"""Memory of the host that is there at once.

The first write to a page of new memory costs a page fault: on a virtual machine as long as 8 KB take to be sent and
received, so that the state of a joiner, which lies in new memory, came half as fast as the network could bring it. And
glibc gives large blocks back to the system as they are freed, only to ask for them again: that made some ranks fault
anew in every step, by luck, for a third of the step's time. So a rank whose model is on the CPU keeps what it has had,
and one that waits to join touches beforehand what it will need.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 * 2**20
"""Larger blocks glibc always maps and unmaps (``DEFAULT_MMAP_THRESHOLD_MAX``)."""
_NEVER = 2**31 - 1
_OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed(environ: Mapping[str, str]) -> bool:
    """Have malloc keep what is freed, for the process's next use of it; what the user has set in ``environ`` stands.

    Returns whether it does so. Elsewhere than with glibc nothing changes, nor where another allocator was preloaded.
    """
    if any(name in environ for name in _OWN_CHOICE):
        return False
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
    return False


def touch(nbytes: int) -> None:
    """Have so many bytes ready for tensors on the CPU that are made later. In the thread that will make them."""
    half = _LARGEST // 2
    blocks = [torch.empty(min(half, nbytes - start), dtype=torch.uint8) for start in range(0, nbytes, half)]
    for block in blocks:
        block.zero_()
