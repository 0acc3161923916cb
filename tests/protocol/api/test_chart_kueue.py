"""The chart's rights for jobs under Kueue are those that the operator and Kueue use."""

from __future__ import annotations

from typing import Any

from charts import Manifests, Render, operator
from elastrain_operator.kueue.apply import CLUSTER_PERMISSIONS, PERMISSIONS

GROUPS = {"kueue.x-k8s.io", "scheduling.k8s.io"}


def granted(manifests: Manifests, name: str, kind: str = "ClusterRole") -> dict[tuple[str, str], frozenset[str]]:
    """(API group, resource) → verbs of a role, those of Kueue's kinds and priority classes."""
    [role] = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    rules: list[dict[str, Any]] = role["rules"]
    return {(r["apiGroups"][0], one): frozenset(r["verbs"]) for r in rules for one in r["resources"]}


def test_operator_has_exactly_the_rights_that_it_uses(rendered: Render) -> None:
    manifests = rendered("kueue.enabled=true", "capacity.enabled=false")
    jobs = {k: v for k, v in granted(manifests, "demo-elastrain.training").items() if k[0] in GROUPS}
    assert jobs == PERMISSIONS
    assert granted(manifests, "demo-elastrain.training.queues") == CLUSTER_PERMISSIONS
    [container] = operator(manifests)["spec"]["template"]["spec"]["containers"]
    assert {"name": "ELASTRAIN_KUEUE", "value": "true"} in container["env"]


def test_operator_has_them_in_each_served_namespace_if_these_are_listed(rendered: Render) -> None:
    manifests = rendered("kueue.enabled=true", "watchNamespaces={team-a}")
    jobs = granted(manifests, "demo-elastrain.training", "Role")
    assert {k: v for k, v in jobs.items() if k[0] in GROUPS} == PERMISSIONS
    assert granted(manifests, "demo-elastrain.training.queues") == CLUSTER_PERMISSIONS


def test_kueue_reads_jobs_and_their_sets(rendered: Render) -> None:
    read = granted(rendered("kueue.enabled=true"), "demo-elastrain.training.kueue")
    assert read == {("elastrain.dev", kind): {"get", "list", "watch"} for kind in ("elastictrainingjobs", "workersets")}


def test_nothing_of_kueue_is_granted_by_default(rendered: Render) -> None:
    text = str([m for m in rendered() if m["kind"] in ("Role", "ClusterRole", "ClusterRoleBinding", "Deployment")])
    assert "kueue" not in text.lower()
