"""What CI tries of a property test or of a matrix, and what only the nightly run tries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadlines, since a loaded machine is not a fault of the tested code. CI tries the same examples each time, so that
# no change is blamed for an older bug; the nightly run searches for new ones.
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=1000, derandomize=False)
settings.load_profile("ci")


def at_night(*rows: Any) -> list[Any]:
    """Rows of a matrix that CI leaves out."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly) for row in rows]


def examples(count: int, *suppressed: HealthCheck, **more: Any) -> settings:
    """Settings of a property test with ``count`` examples at the default budget (100), scaled by the profile in CI and
    at night. ``suppressed``: health checks that do not apply to it."""
    scaled = max(1, count * settings.default.max_examples // 100)
    return settings(max_examples=scaled, suppress_health_check=[HealthCheck.too_slow, *suppressed], **more)
