"""The distribution of the tests over several processes (`pytest -n 3`), and their order.

One process runs a file, in order. Half of a run is waiting (for leases, time-outs, starting processes), so more
processes than cores finish sooner. Files that keep all cores busy, and files that share slow fixtures, run one after
the other, in a *lane*. A lane takes as long as all its tests together, so it starts first.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LANES: dict[str, tuple[str, ...]] = {
    # Each of these three has an API server (2 s of CPU time). Operators serve all namespaces: they come after the tests
    # of others, also where one process runs all three.
    "apiserver": (
        "tests/protocol/api/test_cert_manager.py",
        "tests/protocol/api/test_chart_apiserver.py",
        "tests/protocol/api/test_chart_keys.py",
        "tests/protocol/api/test_crd_apiserver.py",
        "tests/protocol/api/test_autoscaler.py",
        "tests/protocol/api/test_advice.py",
        "tests/protocol/api/test_stolen_token.py",
        "tests/protocol/api/test_stolen_token_pods.py",
        "tests/protocol/api/test_worker_label.py",
        "tests/protocol/client/",
        "tests/guests/dashboard/protocol/test_dashboard_on_apiserver.py",
    ),
    "operator of one job": (
        "tests/protocol/operator/test_admitted_pods_on_apiserver.py",
        "tests/protocol/operator/test_credentials_on_apiserver.py",
        "tests/protocol/operator/test_fenced_writes.py",
        "tests/protocol/operator/test_health_checks.py",
        "tests/protocol/operator/test_lifecycle_on_apiserver.py",
        "tests/protocol/operator/test_metrics_on_apiserver.py",
        "tests/protocol/operator/test_operator_on_apiserver.py",
        "tests/protocol/operator/test_owned_objects_on_apiserver.py",
        "tests/protocol/operator/test_pod_fields_on_apiserver.py",
        "tests/protocol/operator/test_pod_security.py",
        "tests/protocol/operator/test_writes_on_apiserver.py",
        "tests/protocol/operator/test_skew_on_apiserver.py",
        "tests/protocol/operator/test_refusals_on_apiserver.py",
    ),
    "operator of several jobs": (
        "tests/protocol/operator/test_at_rest_on_apiserver.py",
        "tests/protocol/operator/test_capacity_on_apiserver.py",
        "tests/protocol/operator/test_devices_on_apiserver.py",
        "tests/protocol/operator/test_disruption_on_apiserver.py",
        "tests/protocol/operator/test_drain_command.py",
        "tests/protocol/operator/test_evicting_neighbours.py",
        "tests/protocol/operator/test_two_operators_on_apiserver.py",
        "tests/protocol/operator/test_unreadable_on_apiserver.py",
        "tests/protocol/operator/test_failover_on_apiserver.py",
        "tests/protocol/operator/test_gangs_on_apiserver.py",
        "tests/protocol/operator/test_groups_on_apiserver.py",
        "tests/protocol/operator/test_ipv6_on_apiserver.py",
        "tests/protocol/operator/test_karpenter.py",
        "tests/protocol/operator/test_namespaces_on_apiserver.py",
        "tests/protocol/operator/test_overdue_pods_on_apiserver.py",
        "tests/protocol/operator/test_priorities_on_apiserver.py",
        "tests/protocol/operator/test_shared_namespace_on_apiserver.py",
    ),
    # Real ranks, forks of one warm process.
    "training": (
        "tests/training/bench/",
        "tests/training/elastic/test_accumulation.py",
        "tests/training/elastic/test_batchnorm.py",
        "tests/training/elastic/test_bitwise.py",
        "tests/training/elastic/test_rank_checkpoints.py",
        "tests/training/elastic/test_rescale_in_process.py",
        "tests/training/elastic/test_rescale_traces.py",
        "tests/training/elastic/test_state_in_portions.py",
    ),
    # They wait for leases to expire, beside lanes that compute.
    "faults": ("tests/training/faults/",),
    # A control plane of its own with Kueue, whose webhooks look at all pods.
    "kueue": ("tests/protocol/kueue/",),
    "simulation": ("tests/sim/test_simulation.py",),  # all cores
    "sharded checkpoints": ("tests/training/sharded/test_checkpoints.py",),
    "groups": ("tests/training/sharded/test_groups.py",),
    # Local jobs and launchers, some of which import torch themselves.
    "processes": (
        "tests/guests/pairs/protocol/",
        "tests/guests/launchers/training/",
        "tests/training/agent/",
        "tests/training/integrations/",
        "tests/training/local/",
        "tests/training/rendezvous/",
    ),
    "zoo": ("tests/training/zoo/",),
    "one copy": ("tests/training/sharded/test_one_copy.py",),
}
"""The longest first; all other files come after them, and those of one process last."""


def lane(path: str) -> str:
    """The lane of a file, by its path from the repository's root; a file that no lane names is its own lane."""
    return next((name for name, paths in LANES.items() if path.startswith(paths)), path)


def place(path: str) -> int:
    """The place of a file among those of other lanes: lanes start in the order of the table, then all other files. The
    unit tests are the last: their files take less than a second each, so that no process is left alone at the end."""
    names = list(LANES)
    return names.index(lane(path)) if lane(path) in LANES else len(names) + path.startswith("tests/unit/")


def comes_last(path: str) -> bool:
    """Whether a file runs after all others of one process: the operator's tests start an operator for all namespaces,
    which would act on the jobs of other areas' tests."""
    return path.startswith("tests/protocol/operator/")


def order(path: str) -> tuple[int, bool, str]:
    """By it several processes sort the files, in whichever order each has collected them."""
    return place(path), comes_last(path), path


class Lanes(LoadFileScheduling):
    """Assigns whole lanes to the processes, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(super()._split_scope(nodeid))
