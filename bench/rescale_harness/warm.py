"""Memory that a virtual machine has been given, before anything is measured in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import psutil

_BLOCK = 256 << 20
_SHARE = 0.8
_AT_MOST = 4 << 30
"""Bytes, more than a run takes at a time; the kernel hands out first what was given back last."""


def touch_memory(
    tell: Callable[[str], None],
    free: Callable[[], int] = lambda: int(psutil.virtual_memory().free),
) -> int:
    """Write to free memory, as much as a run may want, and give it back; returns how many bytes. ``tell`` is told how
    far it is.

    A host gives a virtual machine its memory page by page, as it is first written to, and some take back what lies free
    (virtio-balloon's free page reporting). There a GiB takes 4 s, a fifth of that when it was in use a moment ago: a
    joiner that gets 110 MB holds up the job for half a second more, and which joiner it is, is chance.
    """
    blocks: list[mmap.mmap] = []
    total = int(min(free() * _SHARE, _AT_MOST)) // _BLOCK
    for done in range(total):
        tell(f"the machine's memory, touched before anything is measured: {done * 100 // total} %")
        blocks.append(mmap.mmap(-1, _BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    for block in blocks:
        block.close()
    return total * _BLOCK
