"""The speeds that the benchmark plays. Pure."""

from __future__ import annotations

BATCH = 128
FAST = 500.0
"""Samples per second of a rank at full speed."""


def speed(scenario: str, now: float) -> float:
    """Of the slow rank, in parts of full speed, ``now`` seconds after its first step."""
    if scenario == "flaps":
        return 0.5 if int(now / 5) % 2 else 1.0
    if scenario == "changes":
        return 1.0 if now < 10 else 0.25
    return float(scenario)
