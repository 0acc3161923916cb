"""The accelerator resource and the number of ranks that follows from it; fields with their own rules."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from elastrain_resource.accelerators import Accelerator, AcceleratorUnclear, accelerator, is_extended, ranks
from elastrain_resource.manifest import InvalidManifest, loads


def with_limits(limits: dict[str, Any]) -> dict[str, Any]:
    return {"name": "trainer", "resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("resource", "extended"),
    [("nvidia.com/gpu", True), ("google.com/tpu", True), ("cpu", False), ("hugepages-2Mi", False),
     ("kubernetes.io/batteries", False), ("node.kubernetes.io/x", False)],
)  # fmt: skip
def test_extended_resource_is_one_of_a_domain_outside_kubernetes(resource: str, extended: bool) -> None:
    assert is_extended(resource) is extended


@pytest.mark.parametrize(
    ("limits", "named", "found"),
    [
        ({}, None, None),
        ({"cpu": 8, "memory": "1Gi"}, None, None),
        ({"habana.ai/gaudi": 8}, None, Accelerator("habana.ai/gaudi", 8)),
        ({"example.com/chip": "2"}, None, Accelerator("example.com/chip", 2)),
        ({"nvidia.com/gpu": 8, "rdma/hca": 4}, None, Accelerator("nvidia.com/gpu", 8)),
        ({"nvidia.com/mig-1g.5gb": 3, "rdma/hca": 1}, None, Accelerator("nvidia.com/mig-1g.5gb", 3)),
        ({"example.com/chip": 2, "example.com/link": 9}, "example.com/chip", Accelerator("example.com/chip", 2)),
    ],
)
def test_accelerator_is_the_only_device_or_the_known_one_or_the_named_one(
    limits: dict[str, Any], named: str | None, found: Accelerator | None
) -> None:
    assert accelerator(with_limits(limits), named) == found


@pytest.mark.parametrize(
    ("limits", "named", "words"),
    [
        ({"a.com/x": 1, "b.com/y": 1}, None, "several extended resources (a.com/x, b.com/y)"),
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, None, "several extended resources (amd.com/gpu, nvidia.com/gpu)"),
        ({"a.com/x": 1}, "b.com/y", "spec.accelerator (b.com/y) must be one of"),
        ({"nvidia.com/gpu": "1.5"}, None, "[nvidia.com/gpu] (1.5) must be a whole number"),
    ],
)
def test_field_and_remedy_are_named_if_the_accelerator_is_ambiguous(
    limits: dict[str, Any], named: str | None, words: str
) -> None:
    with pytest.raises(AcceleratorUnclear) as caught:
        ranks("auto", with_limits(limits), named)
    assert words in str(caught.value)
    assert "spec." in str(caught.value)
    assert ranks(3, with_limits(limits), named) == 3, "a number needs no accelerator"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("nprocPerNode", "many", "spec.nprocPerNode: \"many\": must be a whole number from 1 to 2147483647, or auto"),
        ("nprocPerNode", 0, "spec.nprocPerNode: 0: must be a whole number from 1 to 2147483647, or auto"),
        ("nprocPerNode", True, "spec.nprocPerNode: true: must be a whole number from 1 to 2147483647, or auto"),
        ("accelerator", "gpu", "spec.accelerator: \"gpu\": must be a name with a domain, such as nvidia.com/gpu"),
        ("managedBy", "Kueue", "spec.managedBy: \"Kueue\": must be a name with a domain"),
    ],
)  # fmt: skip
def test_problem_names_field_value_and_rule(field: str, value: Any, words: str) -> None:
    container = {"name": "trainer", "image": "i", "command": ["python"]}
    document = {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "ElasticTrainingJob",
        "metadata": {"name": "j"},
        "spec": {"maxReplicas": 1, field: value, "template": {"spec": {"containers": [container]}}},
    }
    with pytest.raises(InvalidManifest) as caught:
        loads(yaml.safe_dump(document))
    assert words in caught.value.problems[0]
