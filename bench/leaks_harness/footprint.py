"""What a process holds, seen from outside: Linux's ``/proc``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from leaks_harness.analysis import Footprint


def footprint(pid: int) -> Footprint:
    """Of a live process."""
    place = Path(f"/proc/{pid}")
    status = (place / "status").read_text()
    memory = (place / "smaps_rollup").read_text()
    return Footprint(
        threads=int(_field(r"^Threads:\s+(\d+)", status)),
        fds=len(os.listdir(place / "fd")),  # noqa: PTH208 - fds vanish while we look, their number is all we need
        private_kib=int(_field(r"^Private_Dirty:\s+(\d+)", memory)),
    )


def _field(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, f"no {pattern} in {text[:200]}"
    return match[1]
