"""When a series of footprints is called a leak."""

from __future__ import annotations

import os

import pytest

from leaks_harness.analysis import Footprint, Sample, growth
from leaks_harness.footprint import footprint

CYCLES = range(0, 51, 5)


def series(threads: float = 0, fds: float = 0, kib: float = 0, at_start: int = 0) -> list[Sample]:
    """What grows by so much a cycle; ``at_start``: of everything, once, in the first cycles."""
    return [
        Sample(
            cycle=c,
            footprint=Footprint(
                threads=9 + int(threads * c) + (at_start if c else 0),
                fds=20 + int(fds * c) + (at_start if c else 0),
                private_kib=90_000 + int(kib * c) + (1000 * at_start if c else 0),
            ),
        )
        for c in CYCLES
    ]


@pytest.mark.parametrize(
    ("samples", "leaks"),
    [
        (series(), []),
        (series(at_start=30), []),
        (series(threads=1), ["threads"]),
        (series(fds=0.2), ["fds"]),
        (series(kib=6), []),
        (series(kib=1200), ["memory"]),
    ],
    ids=["nothing", "what is made once", "a thread a cycle", "an fd every five", "torch's own growth", "a group"],
)
def test_what_grows_with_every_cycle_leaks(samples: list[Sample], leaks: list[str]) -> None:
    assert growth(samples).leaks == leaks


def test_a_single_jump_is_no_leak() -> None:
    jump = [
        s.model_copy(update={"footprint": s.footprint.model_copy(update={"private_kib": 120_000})})
        if s.cycle >= 30
        else s
        for s in series()
    ]
    assert growth(jump[:-4]).leaks == []


def test_too_few_looks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 samples after the first fifth of the cycles, at least 3 are needed"):
        growth(series()[-2:])


def test_a_footprint_counts_what_a_process_holds() -> None:
    before = footprint(os.getpid())
    with open("/dev/null"):  # noqa: PTH123
        assert footprint(os.getpid()).fds == before.fds + 1
    assert before.threads >= 1 and before.private_kib > 1000
