"""Counts the CUDA devices that processes of this machine may use, without importing torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_DEVICE = re.compile(r"nvidia\d+")


def cuda_devices(environ: Mapping[str, str], found: Iterable[str] | None = None) -> int:
    """The number of devices. ``CUDA_VISIBLE_DEVICES`` decides where it is set; as in CUDA, its first invalid entry ends
    the list. Otherwise the driver's files decide. ``found``: names in ``/dev``; None: read the directory."""
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
