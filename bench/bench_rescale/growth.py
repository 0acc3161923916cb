"""What many rescales leave behind in a process: its footprint, seen from outside, and when growth is a leak."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bench_harness.stats import slope
from bench_rescale.results import Footprint

STEADY_FROM = 0.2
"""Part of the cycles after which pools, caches and buckets have been made."""
MAX_PER_CYCLE = {"threads": 0.04, "fds": 0.04, "private_kib": 100.0}
"""Growth per cycle that is not a leak. A communicator that was never freed keeps over a megabyte. Bare
re-initialisation of gloo in torch 2.13 grows by 6 KiB."""
RESOLVED = 50
"""Cycles that resolve the growth of memory: the heap varies by some MiB."""
FEWEST = 5
"""Footprints that a verdict needs."""


def footprint(pid: int) -> Footprint:
    """Of a live process (Linux)."""
    place = Path(f"/proc/{pid}")
    return Footprint(
        threads=_field("Threads", place / "status"),
        fds=len(os.listdir(place / "fd")),  # noqa: PTH208 - descriptors vanish meanwhile, their number is enough
        private_kib=_field("Private_Dirty", place / "smaps_rollup"),
    )


def _field(name: str, file: Path) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", file.read_text(), re.MULTILINE)
    assert match is not None, f"no {name} in {file}"
    return int(match[1])


def per_cycle(series: Sequence[Footprint], cycles: int) -> dict[str, float]:
    """Growth of each resource per cycle in the steady part of ``series``, which covers ``cycles`` evenly.

    Raises ``ValueError`` if it has fewer than :data:`FEWEST` footprints.
    """
    if len(series) < FEWEST:
        raise ValueError(f"{len(series)} footprints, at least {FEWEST} are needed")
    at = [cycles * i / (len(series) - 1) for i in range(len(series))]
    steady = [i for i in range(len(series)) if at[i] >= STEADY_FROM * cycles]
    return {name: slope([at[i] for i in steady], [getattr(series[i], name) for i in steady]) for name in MAX_PER_CYCLE}


def leaks(series: Sequence[Footprint], cycles: int) -> list[str]:
    """The resources that grow by more than :data:`MAX_PER_CYCLE`; memory only from :data:`RESOLVED` cycles on."""
    found = [name for name, grown in per_cycle(series, cycles).items() if grown > MAX_PER_CYCLE[name]]
    return [name for name in found if name != "private_kib" or cycles >= RESOLVED]
