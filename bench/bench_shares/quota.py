"""Processor quotas of processes, by a cgroup (version 1 or 2): what a throttled container has. Linux, as root."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Self

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
FULL = 0.5
"""Of a core: what a rank at full speed gets. Two ranks fit on one core, beside other work."""
WEIGHT_V1, WEIGHT_V2 = 262_144, 10_000
"""The largest: a quota that other work takes away would measure that work."""
END_SECONDS = 10.0


class Quotas:
    """A group for each rank, while the context lasts. Its processes must have ended by then."""

    def __init__(self, parts: dict[str, float]) -> None:
        """``parts``: of full speed, by rank."""
        self._parts = parts
        self._v2 = (ROOT / "cgroup.controllers").exists()
        self._base = (ROOT if self._v2 else ROOT / "cpu") / f"elastrain-shares-{os.getpid()}"

    @staticmethod
    def missing() -> str | None:
        """Why groups cannot be made here; None: they can."""
        base = ROOT if (ROOT / "cgroup.controllers").exists() else ROOT / "cpu"
        if base.is_dir() and os.access(base, os.W_OK):
            return None
        return f"scenarios cgroup-*: {base} cannot be written: run as root, where the cpu controller is mounted"

    def __enter__(self) -> Self:
        self._base.mkdir()
        if self._v2:
            for above in (ROOT, self._base):
                (above / "cgroup.subtree_control").write_text("+cpu")
        weight = ("cpu.weight", WEIGHT_V2) if self._v2 else ("cpu.shares", WEIGHT_V1)
        (self._base / weight[0]).write_text(str(weight[1]))
        for name, part in self._parts.items():
            folder = self._base / name
            folder.mkdir()
            quota = round(PERIOD_US * FULL * part)
            if self._v2:
                (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
        return self

    def __exit__(self, *_: object) -> None:
        for folder in (*(self._base / name for name in self._parts), self._base):
            _remove(folder)

    def of(self, name: str) -> str:
        """The file to which a process of the rank writes its pid."""
        return str(self._base / name / "cgroup.procs")


def _remove(folder: Path) -> None:
    """Raises ``OSError`` if its processes do not end."""
    end = time.monotonic() + END_SECONDS
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
