"""How many CUDA devices this machine lets its processes use. Without torch, which local mode does not import."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_DEVICE = re.compile(r"nvidia\d+")


def cuda_devices(environ: Mapping[str, str], found: Iterable[str] | None = None) -> int:
    """Devices by ``CUDA_VISIBLE_DEVICES`` where it is set (the first word that is none ends its list, as in CUDA), else
    by the driver's files. ``found``: names in ``/dev``; None: look."""
    names = [p.name for p in Path("/dev").glob("nvidia*")] if found is None else found
    there = sum(_DEVICE.fullmatch(name) is not None for name in names)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or there == 0:
        return there
    chosen = 0
    for word in visible.split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", word.strip()) or (word.strip().isdigit() and int(word) >= there):
            break
        chosen += 1
    return chosen
