"""The number of examples of a property test: few in CI, many at night (``--hypothesis-profile=nightly``)."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

# No deadlines, since a loaded machine is not a fault of the tested code. CI tries the same examples each time, so that
# no change is blamed for an older bug; the nightly run searches for new ones.
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=1000, derandomize=False)
settings.load_profile("ci")


def examples(count: int, *suppressed: HealthCheck, **more: Any) -> settings:
    """Settings of a property test with ``count`` examples at the default budget (100), scaled by the profile in CI and
    at night. ``suppressed``: health checks that do not apply to it."""
    scaled = max(1, count * settings.default.max_examples // 100)
    return settings(max_examples=scaled, suppress_health_check=[HealthCheck.too_slow, *suppressed], **more)
