"""The operator's permissions, verb by verb, each with its reason: exactly these, in every installation.

A change that adds or removes a permission adds or removes its reason here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charts import operator
from elastrain_dashboard.access import REVIEW_PERMISSIONS
from elastrain_dashboard.board import NODE_PERMISSIONS as DASHBOARD_NODE_PERMISSIONS
from elastrain_dashboard.board import PERMISSIONS as DASHBOARD_PERMISSIONS
from elastrain_operator.kube.client import CAPACITY_PERMISSIONS, CLUSTER_PERMISSIONS, LEASE_PERMISSIONS, PERMISSIONS
from elastrain_operator.pod.gang import SCHEDULERS

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]

JOBS = {
    ("elastrain.dev", "elastictrainingjobs", "get"): "a job whose records are to be swept: does it still exist?",
    ("elastrain.dev", "elastictrainingjobs", "list"): "the jobs that there are, at the start",
    ("elastrain.dev", "elastictrainingjobs", "watch"): "jobs that come, change and go",
    ("elastrain.dev", "elastictrainingjobs", "delete"): "ttlSecondsAfterFinished",
    ("elastrain.dev", "elastictrainingjobs/status", "patch"): "what kubectl get etj shows",
    ("", "pods", "get"): "a pod that was created, and that the watch does not show",
    ("", "pods", "list"): "the workers that there are, at the start",
    ("", "pods", "watch"): "workers that start, end and are lost",
    ("", "pods", "create"): "workers",
    ("", "pods", "patch"): "annotations for autoscalers; the admission policy allows no other change",
    ("", "pods", "delete"): "workers that have left, or of a job that has ended",
    ("", "events", "create"): "what kubectl describe etj shows",
    ("", "events", "patch"): "the same, when it happens again: the event's count",
    ("policy", "poddisruptionbudgets", "list"): "budgets of users, which replace the operator's: no pod may have two",
    ("policy", "poddisruptionbudgets", "create"): "server-side apply needs it for a new one",
    ("policy", "poddisruptionbudgets", "patch"): "one worker that holds a job's state stays through drains",
    ("policy", "poddisruptionbudgets", "delete"): "a job that has ended, or holds nothing, blocks no drain",
    ("elastrain.dev", "workersets", "list"): "the sets that an earlier operator has left, once at the start",
    ("elastrain.dev", "workersets", "create"): "server-side apply needs it for a new one",
    ("elastrain.dev", "workersets", "patch"): "how many workers a job has, for budgets of users",
    ("", "secrets", "create"): "each job's credentials for etcd; never read, never deleted",
    ("", "secrets", "update"): "the same, when they are replaced",
}
"""In every namespace whose jobs are served."""
CAPACITY = {
    ("", "nodes", "list"): "what there is to share out",
    ("", "nodes", "watch"): "the same, when it changes",
    ("scheduling.k8s.io", "priorityclasses", "list"): "who comes before whom",
    ("scheduling.k8s.io", "priorityclasses", "watch"): "the same, when it changes",
    ("", "resourcequotas", "list"): "how many pods of a minimum the API server will admit",
    ("", "resourcequotas", "watch"): "the same, when it changes",
    ("resource.k8s.io", "resourceslices", "list"): "the devices that pods may claim",
    ("resource.k8s.io", "resourceslices", "watch"): "the same, when it changes",
    ("resource.k8s.io", "deviceclasses", "list"): "which of them a claim may get",
    ("resource.k8s.io", "deviceclasses", "watch"): "the same, when it changes",
    ("resource.k8s.io", "resourceclaims", "list"): "which of them are held",
    ("resource.k8s.io", "resourceclaims", "watch"): "the same, when it changes",
    ("resource.k8s.io", "resourceclaimtemplates", "list"): "how many a job's worker asks for",
    ("resource.k8s.io", "resourceclaimtemplates", "watch"): "the same, when it changes",
}
"""In the whole cluster, where the operator shares it out."""
LEASE = {
    ("coordination.k8s.io", "leases", "create"): "the first leader makes the Lease (a name cannot be demanded here)",
    ("coordination.k8s.io", "leases", "get"): "who leads? Of the one Lease only",
    ("coordination.k8s.io", "leases", "update"): "to lead, and to release it. Of the one Lease only",
}
"""In the namespace of the release."""
CLUSTER = {("", "namespaces", "get"): "which cluster is this, by the UID of kube-system? Of that namespace only"}
"""In kube-system."""
DASHBOARD = {
    ("elastrain.dev", "elastictrainingjobs", "list"): "all jobs, at the start and after an outage",
    ("elastrain.dev", "elastictrainingjobs", "watch"): "what changes without a reload",
    ("", "pods", "list"): "a job's workers, and who holds which accelerators",
    ("", "pods", "watch"): "the same, when it changes",
    ("", "events", "list"): "what has happened to a job in the last hour",
    ("", "events", "watch"): "the same, when more happens",
}
"""Of the dashboard, which has a service account of its own and writes nothing, in every namespace that it shows."""
DASHBOARD_REVIEWS = {
    ("authentication.k8s.io", "tokenreviews", "create"): "who sends a request",
    ("authorization.k8s.io", "subjectaccessreviews", "create"): "what that user may list",
}
"""In the whole cluster: it shows each user what that user's own rights allow."""
DASHBOARD_NODES = {
    ("", "nodes", "list"): "what accelerators there are",
    ("", "nodes", "watch"): "the same, when it changes",
}
"""In the whole cluster, where it shows all namespaces."""

SCOPES = {
    "cluster": ((), None),
    "cluster, not shared out": (("capacity.enabled=false",), None),
    "namespaced": (("watchNamespaces={team-a,team-b}",), {"team-a", "team-b"}),
    "own namespace": (("watchNamespaces={training}",), {"training"}),
}


def grants(manifests: Manifests, to: str = "demo-elastrain") -> dict[tuple[str, str | None], list[dict[str, Any]]]:
    """(kind of the binding, its namespace) -> all rules that it grants to a service account."""
    roles = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]): m for m in manifests if "rules" in m}
    given: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for binding in manifests:
        if "roleRef" not in binding:
            continue
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", "training")
        assert subject["name"] in ("demo-elastrain", "demo-elastrain-dashboard"), "an unknown account"
        if subject["name"] != to:
            continue
        namespace, ref = binding["metadata"].get("namespace"), binding["roleRef"]
        place = namespace if ref["kind"] == "Role" else None
        given.setdefault((binding["kind"], namespace), []).extend(roles[ref["kind"], place, ref["name"]]["rules"])
    return given


def verbs(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    found = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert not {part for right in found for part in right if "*" in part}, "no wildcard"
    return found


@pytest.mark.parametrize(("values", "namespaces"), SCOPES.values(), ids=SCOPES.keys())
def test_operator_has_the_rights_of_the_table_and_no_other(
    rendered: Render, values: tuple[str, ...], namespaces: set[str] | None
) -> None:
    given = grants(rendered(*values, "dashboard.enabled=true"))
    expected = {("RoleBinding", "training"): set(LEASE), ("RoleBinding", "kube-system"): set(CLUSTER)}
    for place in [("ClusterRoleBinding", None)] if namespaces is None else [("RoleBinding", n) for n in namespaces]:
        expected[place] = expected.get(place, set()) | set(JOBS)
    if not values:
        expected["ClusterRoleBinding", None] |= set(CAPACITY)
    assert {place: verbs(rules) for place, rules in given.items()} == expected


@pytest.mark.parametrize("scheduler", ["none", *SCHEDULERS])
def test_operator_writes_gangs_of_the_chosen_scheduler_only(rendered: Render, scheduler: str) -> None:
    given = grants(rendered(f"gang.scheduler={scheduler}", "watchNamespaces={team-a}"))["RoleBinding", "team-a"]
    used = SCHEDULERS[scheduler].permissions if scheduler in SCHEDULERS else {}
    assert verbs(given) - set(JOBS) == {(g, r, verb) for (g, r), all_verbs in used.items() for verb in all_verbs}


@pytest.mark.parametrize(("values", "namespaces"), SCOPES.values(), ids=SCOPES.keys())
def test_dashboard_has_the_rights_of_the_table_and_no_other(
    rendered: Render, values: tuple[str, ...], namespaces: set[str] | None
) -> None:
    given = grants(rendered(*values, "dashboard.enabled=true"), to="demo-elastrain-dashboard")
    if namespaces is None:
        expected = {("ClusterRoleBinding", None): {*DASHBOARD, *DASHBOARD_NODES, *DASHBOARD_REVIEWS}}
    else:
        expected = {("RoleBinding", n): set(DASHBOARD) for n in namespaces}
        expected["ClusterRoleBinding", None] = set(DASHBOARD_REVIEWS)
    assert {place: verbs(rules) for place, rules in given.items()} == expected


def test_no_permissions_are_granted_without_a_dashboard(rendered: Render) -> None:
    assert grants(rendered(), to="demo-elastrain-dashboard") == {}
    assert not [m for m in rendered() if "dashboard" in m["metadata"]["name"]]


def test_operator_reads_no_namespace_but_kube_system(rendered: Render) -> None:
    (rule,) = grants(rendered())["RoleBinding", "kube-system"]
    assert rule["resourceNames"] == ["kube-system"]


def test_devices_are_read_only_if_the_values_say_so(rendered: Render) -> None:
    found = verbs(grants(rendered("capacity.deviceClaims=false"))["ClusterRoleBinding", None])
    assert found == {*JOBS, *(right for right in CAPACITY if right[0] != "resource.k8s.io")}


def test_operator_may_use_only_its_own_lease(rendered: Render) -> None:
    rules = grants(rendered())["RoleBinding", "training"]
    named = {tuple(rule["verbs"]): rule.get("resourceNames") for rule in rules}
    assert named == {("create",): None, ("get", "update"): ["demo-elastrain"]}
    (container,) = operator(rendered())["spec"]["template"]["spec"]["containers"]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["ELASTRAIN_LEASE"] == "training/demo-elastrain"


@pytest.mark.parametrize(
    ("table", "used"),
    [
        (JOBS, PERMISSIONS),
        (CAPACITY, CAPACITY_PERMISSIONS),
        (LEASE, LEASE_PERMISSIONS),
        (CLUSTER, CLUSTER_PERMISSIONS),
        (DASHBOARD, DASHBOARD_PERMISSIONS),
        (DASHBOARD_NODES, DASHBOARD_NODE_PERMISSIONS),
        (DASHBOARD_REVIEWS, REVIEW_PERMISSIONS),
    ],
    ids=["jobs", "capacity", "lease", "cluster", "dashboard", "dashboard's nodes", "dashboard's reviews"],
)
def test_table_matches_the_programs_declared_use(table: Any, used: Any) -> None:
    assert set(table) == {(group, resource, verb) for (group, resource), verbs in used.items() for verb in verbs}


def test_users_roles_grant_the_operator_nothing(rendered: Render) -> None:
    bound = {m["roleRef"]["name"] for m in rendered() if "roleRef" in m}
    assert bound == {f"demo-elastrain{name}" for name in (".training", ".training.identity", "-lease")}


def test_the_page_for_administrators_names_each_right() -> None:
    """docs/operations.md, "Rights": resource → verbs, of the operator."""
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    table = page.split("| resource | the operator's verbs | purpose |\n")[1].split("\n\n")[0]
    told: dict[str, set[str]] = {}
    for row in table.splitlines()[1:]:
        resources, words, _ = row.strip("| ").split(" | ")
        for resource in re.findall(r"`([a-z/]+)`", resources):
            told[resource] = set(re.findall(r"get|list|watch|create|update|patch|delete", words))
    given: dict[str, set[str]] = {}
    for _, resource, verb in {*JOBS, *CAPACITY, *LEASE, *CLUSTER}:
        given.setdefault(resource, set()).add(verb)
    assert told == given
