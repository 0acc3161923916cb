"""Compares the numbers in binary files that a run has written with those of the two references."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastrain_verify.compare import ABSENT, Bounds, Parting, differing, scales_of

READ = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors", ".npy", ".npz")
SECONDS = 300.0
MOST_BYTES = 1 << 30


def parting(names: Sequence[str], reference: Path, repeat: Path, run: Path, bounds: Bounds) -> Parting | None:
    """The first number that differs in the files ``names`` of three working directories.

    Of the numbers those count in which both references agree: times do not.
    """
    for name in sorted(n for n in names if n.endswith(READ)):
        paths = [folder / name for folder in (reference, repeat, run)]
        if max(path.stat().st_size for path in paths) > MOST_BYTES or paths[0].read_bytes() == paths[2].read_bytes():
            continue
        one, again, other = _numbers(paths)
        ignored = set(differing(one, again, bounds, scales_of(one)))
        if apart := [n for n in differing(one, other, bounds, scales_of(one)) if n not in ignored]:
            expected, found = one.get(apart[0], ABSENT), other.get(apart[0], ABSENT)
            return Parting(0, f"file {apart[0]}", expected, found, ended=True, others=len(apart) - 1)
    return None


def _numbers(paths: Sequence[Path]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "elastrain_verify.numbers", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return found if len(found) == len(paths) else [{} for _ in paths]
