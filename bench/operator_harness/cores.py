"""Who uses the cores: processor seconds of everybody who takes part in a run. On few cores their sum is the time."""

from __future__ import annotations

import os
from collections.abc import Mapping

from operator_harness.systems import Elastrain, System, cpu_of

PLANE = ("apiserver", "etcd", "controllers", "scheduler", "kwok")


def used(system: System) -> dict[str, float]:
    """Processor seconds so far, by who used them. ``benchmark`` plays the members and counts the pods; ``kubectl`` is
    what it has started and seen end."""
    own = os.times()
    found = {name: cpu_of(system.plane.pid(name)) for name in PLANE}
    found |= {"kubectl": own.children_user + own.children_system, "benchmark": own.user + own.system}
    if isinstance(system, Elastrain):
        found |= {"operator": system.cpu(), "its etcd": system.etcd_cpu()}
    return found


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was used, most of all first."""
    spent = {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in after.items()}
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
