"""What runs beside what, and in which order, where several processes run these tests (`pytest -n 3`).

A file is run by one process, in order. Much of it waits (for leases, time-outs, processes that start), so that more
processes than cores end sooner. But files that keep all cores busy run one after the other, in a *lane* (there are two
such lanes, as ranks wait for each other); and files that need a server that is slow to start share it in theirs. A lane
is as long as all its tests together, so it begins first.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LANES: dict[str, tuple[str, ...]] = {
    # Several ranks import torch, and train; they are killed, stopped, cut off.
    "training": (
        "tests/training/elastic/test_accumulation.py",
        "tests/training/elastic/test_batchnorm.py",
        "tests/training/elastic/test_bitwise.py",
        "tests/training/elastic/test_rescale_in_process.py",
        "tests/training/elastic/test_rescale_traces.py",
        "tests/training/elastic/test_state_in_portions.py",
        "tests/training/faults/",
        "tests/protocol/nodecheck/",
        "tests/training/rendezvous/",
    ),
    # The examples, whole.
    "examples": (
        "tests/training/integrations/",
        "tests/training/local/",
    ),
    # An API server, and an operator that serves all its namespaces.
    "operator": (
        "tests/protocol/operator/test_capacity_on_apiserver.py",
        "tests/protocol/operator/test_credentials_on_apiserver.py",
        "tests/protocol/operator/test_failover_on_apiserver.py",
        "tests/protocol/operator/test_lifecycle_on_apiserver.py",
        "tests/protocol/operator/test_metrics_on_apiserver.py",
        "tests/protocol/operator/test_operator_on_apiserver.py",
        "tests/protocol/operator/test_pod_security.py",
        "tests/protocol/operator/test_spares_on_apiserver.py",
    ),
    # An API server without an operator.
    "apiserver": (
        "tests/protocol/api/test_cert_manager.py",
        "tests/protocol/api/test_chart_apiserver.py",
        "tests/protocol/api/test_crd_apiserver.py",
        "tests/protocol/api/test_autoscaler.py",
        "tests/protocol/client/",
        "tests/protocol/dashboard/test_dashboard_on_apiserver.py",
    ),
}


def lane(path: str) -> str:
    """Of a file, by its path from the repository's root; one that no lane names is a lane of its own."""
    return next((name for name, paths in LANES.items() if path.startswith(paths)), path)


def place(path: str) -> int:
    """Of a file among those of other lanes: lanes begin in the order of the table, then come all other files."""
    names = list(LANES)
    return names.index(lane(path)) if lane(path) in LANES else len(names)


class Lanes(LoadFileScheduling):
    """Gives whole lanes to the processes, in the order in which the tests are collected."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(super()._split_scope(nodeid))
