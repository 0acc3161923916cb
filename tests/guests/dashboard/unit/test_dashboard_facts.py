"""The facts kept of API objects."""

from __future__ import annotations

import pytest

from elastrain_dashboard import facts


def test_a_job_is_kept_without_its_template(body) -> None:
    kept = facts.job(body("job"))
    assert "hidden" not in str(kept.body), "a template's environment may hold secrets"
    assert kept.body["spec"]["maxReplicas"] == 4


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ({"nvidia.com/gpu": "2"}, ("nvidia.com/gpu", 2)),
        ({"nvidia.com/gpu": 8, "rdma/hca": 16}, ("nvidia.com/gpu", 8)),
        ({"nvidia.com/mig-1g.5gb": "3"}, ("nvidia.com/mig-1g.5gb", 3)),
        ({"example.com/chip": "4", "cpu": "8"}, ("example.com/chip", 4)),
        ({"cpu": "8", "memory": "1Gi"}, (facts.CPU_WORKERS, 1)),
        ({"nvidia.com/gpu": "0"}, (facts.CPU_WORKERS, 1)),
        ({"nvidia.com/gpu": "many"}, (facts.CPU_WORKERS, 1)),
        (None, (facts.CPU_WORKERS, 1)),
    ],
)
def test_a_worker_holds_its_limits(body, limits, holds) -> None:
    pod = body("pod", "digits", 0)
    pod["spec"]["containers"][0]["resources"] = {"limits": limits}
    kept = facts.pod(pod)
    assert (kept.resource, kept.count) == holds


@pytest.mark.parametrize(
    ("node", "phase", "count"),
    [("", "Pending", 0), ("n", "Pending", 1), ("n", "Running", 1), ("n", "Succeeded", 0), ("n", "Failed", 0)],
)
def test_accelerators_are_held_from_the_binding_to_the_end(body, node: str, phase: str, count: int) -> None:
    kept = facts.pod(body("pod", "digits", 0, node=node, phase=phase))
    assert kept.count == count


def test_a_pod_without_a_job_is_ignored(body) -> None:
    pod = body("pod", "digits", 0)
    del pod["metadata"]["labels"]
    assert facts.pod(pod) is None


def test_a_node_is_kept_with_its_devices(body) -> None:
    node = body("node", "a", gpus=4, ready=False)
    node["spec"]["unschedulable"] = True
    assert facts.node(node) == facts.NodeFacts("a", ready=False, cordoned=True, devices=(("nvidia.com/gpu", 4),))
